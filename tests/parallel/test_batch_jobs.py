"""`hvdtrain launch pbs` and `lsf`: their scripts train, and go on until the training is done.

There is no PBS and no LSF here. The stand-ins for qsub and bsub do to a script what these do: they set the variables of
a job, write its node file, and run it; LSF's also starts a job again that ends with 75. Where ASK names a signal, the
first job gets it after its first steps, as from `qsig -s SIGUSR1`, or from LSF before the time limit (-wa URG); all its
processes get USR2, as at the time limit of LSF's queue.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.processes import run_command
from support.runs import result_of, topology_of_run

DEADLINE_S = 180
ROOT = ["--allow-root"] if os.geteuid() == 0 else []

ASK = """
ask_to_save() {  # job's process
    [ "${ASK:-}" ] && [ "$(wc -l < jobs)" -eq 1 ] || return 0
    until grep -qs loss runs/*/metrics.jsonl; do kill -0 "$1" && sleep 0.1 || return 0; done
    if [ "$ASK" = USR2 ]; then kill -s USR2 -- "-$1"; else kill -s "$ASK" "$1"; fi
}
"""
QSUB = f"""#!/bin/bash
{ASK}
if [ "$1" = --version ]; then
    echo "pbs_version = 23.06.06"
    exit
fi
echo job >> jobs
[ "$(wc -l < jobs)" -lt 9 ] || exit 1
printf 'localhost\\nlocalhost\\n' > nodes
export PBS_NODEFILE=$PWD/nodes PBS_O_WORKDIR=$PWD PBS_JOBID=$(wc -l < jobs).head OMP_NUM_THREADS=2
bash < "$1" &
ask_to_save "$!"
wait "$!"
"""
BSUB = f"""#!/bin/bash
{ASK}
cat > spooled
code=75
touch jobs
while [ "$code" -eq 75 ] && [ "$(wc -l < jobs)" -lt 9 ]; do
    echo job >> jobs
    code=0
    LSB_JOBID=1 LSB_JOBINDEX=0 LSB_MCPU_HOSTS="localhost 2" setsid bash spooled &
    ask_to_save "$!"
    wait "$!" || code=$?
done
exit "$code"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for name, text in (("qsub", QSUB), ("bsub", BSUB)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def launch(cluster: Path, argv: list[str], code: int = 0, ask: str = "") -> int:
    """Submit a job, and wait until it and all that follow it have ended; signal `ask` asks the first one to save."""
    variables = {"PATH": f"{cluster / 'bin'}{os.pathsep}{os.environ['PATH']}", "ASK": ask}
    done = run_command(["python", "-m", "hvdtrain", "launch", *argv], DEADLINE_S, variables, cluster, "warm workers")
    assert done.returncode == code, done.tail()
    return len((cluster / "jobs").read_text().splitlines())


@pytest.mark.parametrize(
    ("scheduler", "start", "launcher"),
    [
        ("pbs", ["ssh"], "hvdtrain launch"),
        ("pbs", ["mpirun", *ROOT], "mpirun"),
        ("lsf", ["ssh"], "hvdtrain launch"),
        ("lsf", ["mpirun", *ROOT], "mpirun"),
    ],
)
def test_a_job_trains_on_the_hosts_that_it_is_given(
    cluster: Path, scheduler: str, start: list[str], launcher: str
) -> None:
    jobs = launch(cluster, [scheduler, "-np", "2", "--start", *start, "--", "train", "--max-steps", "2"])
    assert jobs == 1
    (run,) = (cluster / "runs").iterdir()
    assert run.name == "hvdtrain-1"
    topology = topology_of_run(run)
    assert (topology["size"], topology["launcher"]) == (2, launcher)


@pytest.mark.parametrize(
    ("scheduler", "signal", "code", "start"),
    [
        ("pbs", "USR1", 75, ["ssh"]),
        ("lsf", "URG", 0, ["ssh"]),
        ("lsf", "USR2", 0, ["ssh"]),
        ("lsf", "USR2", 0, ["mpirun", *ROOT]),
    ],
)
def test_a_job_that_has_saved_goes_on_in_its_run_folder_until_it_is_done(
    cluster: Path, scheduler: str, signal: str, code: int, start: list[str]
) -> None:
    """PBS's first job ends with 75, and another one goes on; LSF's is one job all the time."""
    limits = ["--start", *start, "--max-restarts", "1", *(["--time-limit", "1:00:00"] if signal != "USR2" else [])]
    jobs = launch(cluster, [scheduler, "-np", "2", *limits, "--", "train", "--epochs", "12"], code, signal)
    assert jobs == 2
    (run,) = (cluster / "runs").iterdir()
    result = result_of(run)
    assert (result["status"], result["epochs"], result["world_size"]) == ("finished", 12, 2)
