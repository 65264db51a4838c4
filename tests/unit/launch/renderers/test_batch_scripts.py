"""Scripts for PBS and LSF, run by bash with the variables that a scheduler sets and stand-ins for a cluster's programs.

That such a script trains, tests/parallel/test_batch_jobs.py shows.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.processes import wait_until

from hvdtrain.errors import UsageError
from hvdtrain.launch import lsf, pbs, slurm
from hvdtrain.launch.job_spec import JobSpec

SECONDS = 60
COMMAND = ("train", "--data.path", 'it\'s $HOME `id` "x" $hosts')

# A program of a cluster: it writes how it was called and ends; as a launcher with PATIENT, only when USR1 comes.
STAND_IN = """#!{python}
import os, signal, sys
def note(*words):
    with open(os.environ["CALLS"], "a") as file:
        file.write(" ".join(words) + "\\n")
name = os.path.basename(sys.argv[0])
def heard(number, frame):
    note(name, "heard", signal.Signals(number).name)
    sys.exit(75)
signal.signal(signal.SIGUSR1, heard)
note(name, *sys.argv[1:])
if os.environ.get("PATIENT") and name in ("mpirun", "jsrun"):
    signal.pause()
sys.exit(int(os.environ.get("CODE", "0")) if name in ("mpirun", "jsrun") else 0)
"""


class Cluster:
    """A folder with stand-ins, and what they were called with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        for name in ("qsub", "bsub", "mpirun", "jsrun", "jskill"):
            (folder / "bin" / name).write_text(STAND_IN.format(python=sys.executable))
            (folder / "bin" / name).chmod(0o755)
        (folder / "nodes").write_text("n1\n" * 4 + "n2\n" * 6)
        (folder / "without").write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
        (folder / "without").chmod(0o755)

    def environment(self, **variables: str) -> dict[str, str]:
        here = {"CALLS": str(self.folder / "calls"), "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        of_pbs = {"PBS_NODEFILE": str(self.folder / "nodes"), "PBS_O_WORKDIR": str(self.folder), "PBS_JOBID": "7.head"}
        of_lsf = {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "n1 4 n2 6"}
        return {**os.environ, **here, **of_pbs, **of_lsf, **variables}

    def run(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash"],
            input=script,
            cwd=self.folder,
            env=self.environment(**variables),
            text=True,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )

    @contextmanager
    def running(self, script: str, launcher: str) -> Iterator[subprocess.Popen[str]]:
        """The script, once it has started its launcher, which waits for USR1."""
        (self.folder / "script").write_text(script)
        process = subprocess.Popen(
            ["bash", "script"], cwd=self.folder, env=self.environment(PATIENT="1"), text=True, start_new_session=True
        )
        try:
            wait_until("the launcher runs", lambda: any(launcher in call for call in self.calls()), SECONDS)
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(SECONDS)

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def names(self) -> list[str]:
        return [call.split()[0] for call in self.calls()]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def job(**changes: Any) -> JobSpec:
    return JobSpec(**{"command": COMMAND, "np": 8, "slots_per_host": 4, "python": sys.executable, **changes})


def pbs_script(inner: str = "mpirun", flavor: str = "openmpi5", kind: str = "openpbs", **changes: Any) -> str:
    plan = pbs.render(job(**changes), pbs.PbsOptions(inner=inner, flavor=flavor, kind=kind))
    return plan.files["hvdtrain.pbs"]


def lsf_script(inner: str = "mpirun", flavor: str = "openmpi5", **changes: Any) -> str:
    return lsf.render(job(**changes), lsf.LsfOptions(inner=inner, flavor=flavor)).files["hvdtrain.lsf"]


def slurm_script(**changes: Any) -> str:
    return slurm.render(job(**changes)).files["hvdtrain.sbatch"]


SCRIPTS = {
    "pbs": pbs_script(max_restarts=1, time_limit=3600),
    "pbs over ssh": pbs_script("ssh", max_restarts=1, time_limit=3600),
    "lsf": lsf_script(max_restarts=1, time_limit=3600),
    "lsf over ssh": lsf_script("ssh", max_restarts=1, time_limit=3600),
    "jsrun": lsf_script("jsrun", max_restarts=1, time_limit=3600),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_bash_reads_it_and_directives_come_first(name: str) -> None:
    done = subprocess.run(["bash", "-n"], input=SCRIPTS[name], text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = SCRIPTS[name].splitlines()
    directives = [number for number, line in enumerate(lines) if line.startswith(("#PBS", "#BSUB"))]
    assert directives == list(range(1, len(directives) + 1))


@pytest.mark.parametrize("name", SCRIPTS)
def test_outside_of_a_job_it_says_how_to_submit_it(name: str, cluster: Cluster) -> None:
    done = cluster.run(SCRIPTS[name], PBS_NODEFILE="", LSB_MCPU_HOSTS="", LSB_JOBID="")
    assert (done.returncode, cluster.calls()) == (2, [])
    assert "is not set. This script runs inside a job of" in done.stderr
    assert "HINT: submit it: " in done.stderr


@pytest.mark.parametrize("render", [pbs_script, lsf_script])
def test_an_interpreter_without_hvdtrain_starts_nothing(render: Any, cluster: Cluster) -> None:
    done = cluster.run(render(python=str(cluster.folder / "without"), max_restarts=3), PYTHONPATH="")
    assert (done.returncode, cluster.calls()) == (2, [])
    assert f"{cluster.folder / 'without'} cannot import hvdtrain on " in done.stderr
    assert "HINT: install hvdtrain there" in done.stderr


@pytest.mark.parametrize("render", [pbs_script, lsf_script])
@pytest.mark.parametrize("inner", ["mpirun", "ssh"])
@pytest.mark.parametrize(
    ("np", "slots", "found"),
    [(12, (4, 6), "8 slots: n1:4,n2:4."), (8, (4, 2), "6 slots: n1:4,n2:2."), (8, (), "no host.")],
)
def test_too_few_slots_start_nothing(
    render: Any, inner: str, np: int, slots: tuple[int, ...], found: str, cluster: Cluster
) -> None:
    names = [f"n{number}" for number in range(1, len(slots) + 1)]
    (cluster.folder / "nodes").write_text("".join(f"{name}\n" * n for name, n in zip(names, slots, strict=True)))
    pairs = " ".join(f"{name} {n}" for name, n in zip(names, slots, strict=True)) or " "
    done = cluster.run(render(inner, np=np, max_restarts=3), LSB_MCPU_HOSTS=pairs)
    assert (done.returncode, cluster.calls()) == (2, [])
    assert f"The job has {np} workers, 4 on a host. " in done.stderr
    assert found in done.stderr
    assert f"HINT: ask for {np // 4} hosts with 4 slots each" in done.stderr


def test_without_jsrun_nothing_counts_as_a_failure(cluster: Cluster) -> None:
    (cluster.folder / "bin" / "jsrun").unlink()
    done = cluster.run(lsf_script("jsrun", max_restarts=3))
    assert (done.returncode, cluster.calls()) == (2, [])
    assert "There is no jsrun on " in done.stderr


@pytest.mark.parametrize("render", [pbs_script, lsf_script])
@pytest.mark.parametrize(
    ("flavor", "named"),
    [("openmpi4", "--host n1:4,n2:4"), ("mpich", "-hosts n1:4,n2:4"), ("intel", "-hosts n1,n2 -ppn 4")],
)
def test_mpirun_gets_each_host_once_with_its_workers(render: Any, flavor: str, named: str, cluster: Cluster) -> None:
    """Whatever the slots of hosts count, which are cores on many clusters. Each word of the command stays as it is."""
    assert cluster.run(render(flavor=flavor)).returncode == 0
    (call,) = cluster.calls()
    assert f" {named} " in call
    assert call.endswith(f" {sys.executable} -m hvdtrain {' '.join(COMMAND)} --output-dir runs/hvdtrain-7")


@pytest.mark.parametrize("render", [pbs_script, lsf_script])
@pytest.mark.parametrize(("inner", "named"), [("mpirun", "--host n2:2,n1:4 "), ("ssh", "-H n2:2,n1:4 ")])
def test_a_host_with_fewer_slots_gets_fewer_workers(render: Any, inner: str, named: str, cluster: Cluster) -> None:
    """In the order in which the scheduler names hosts, whether it names one once or several times."""
    (cluster.folder / "nodes").write_text("n2\n" + "n1\n" * 6 + "n2\n")
    script = render(inner, np=6, python=str(cluster.folder / "bin" / "mpirun"))
    assert cluster.run(script, LSB_MCPU_HOSTS="n2 1 n1 6 n2 1").returncode == 0
    assert named in cluster.calls()[-1]


def test_a_pbs_job_goes_on_in_new_jobs_after_two_failures_and_any_number_of_stops(cluster: Cluster) -> None:
    expected: list[str] = []
    variables: dict[str, str] = {}
    for number, (code, goes_on) in enumerate([(1, 1), (75, 1), (137, 1), (75, 1), (1, 0), (2, 0), (0, 0)], start=7):
        script = pbs_script(max_restarts=2)
        done = cluster.run(script, CODE=str(code), PBS_JOBID=f"{number}.head", **variables)
        assert done.returncode == code, done
        expected += ["mpirun", "qsub"] if goes_on else ["mpirun"]
        assert cluster.names() == expected
        variables = {"HVDTRAIN_FIRST_JOB": "7"}  # which qsub -V takes along
    assert {call for call in cluster.calls() if call.startswith("qsub")} == {"qsub hvdtrain.pbs"}
    folders = {call.rpartition(" ")[2] for call in cluster.calls() if call.startswith("mpirun")}
    assert folders == {"runs/hvdtrain-7"}
    assert not (cluster.folder / "hvdtrain-7.failures").exists()


def test_an_lsf_job_ends_with_75_to_be_queued_again(cluster: Cluster) -> None:
    ends = [(1, 75), (75, 75), (137, 75), (75, 75), (1, 1), (2, 2), (0, 0)]
    script = lsf_script(max_restarts=2)
    assert '#BSUB -Q "75"' in script
    assert [cluster.run(script, CODE=str(code)).returncode for code, _ in ends] == [code for _, code in ends]
    assert "#BSUB -Q" not in lsf_script()


def test_hvdtrains_own_launcher_counts_failures_itself() -> None:
    for script in (pbs_script("ssh", max_restarts=2), lsf_script("ssh", max_restarts=2)):
        assert "    --max-restarts 2 \\\n" in script
        assert "failures=" not in script


@pytest.mark.parametrize(
    ("number", "after"), [(signal.SIGTERM, []), (signal.SIGUSR1, ["qsub hvdtrain.pbs"])], ids=["qdel", "qsig"]
)
@pytest.mark.parametrize("time_limit", [None, 3600])
def test_pbs_signals_reach_the_workers_as_a_request_to_save(
    number: signal.Signals, after: list[str], time_limit: int | None, cluster: Cluster
) -> None:
    """PBS may signal the script alone. A job that is deleted stays deleted; one that is asked to save goes on."""
    with cluster.running(pbs_script(max_restarts=2, time_limit=time_limit), "mpirun") as process:
        process.send_signal(number)
        assert process.wait(SECONDS) == 75
    assert cluster.calls()[1:] == ["mpirun heard SIGUSR1", *after]


def test_workers_of_pbs_are_asked_to_save_before_the_time_limit(cluster: Cluster) -> None:
    with cluster.running(pbs_script(max_restarts=1, time_limit=61, grace=5), "mpirun") as process:
        assert process.wait(SECONDS) == 75
    assert cluster.calls()[1:] == ["mpirun heard SIGUSR1", "qsub hvdtrain.pbs"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGURG, 75), (signal.SIGUSR2, 75), (signal.SIGINT, 143), (signal.SIGTERM, 143)]
)
def test_lsfs_signals_reach_the_workers_as_a_request_to_save(
    number: signal.Signals, code: int, cluster: Cluster
) -> None:
    """The notice before the time limit leads back into the queue, and `bkill`, which sends INT and then TERM, not."""
    with cluster.running(lsf_script(max_restarts=2), "mpirun") as process:
        if number == signal.SIGUSR2:  # at the queue's time limit: to the script and all that it has started
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        assert process.wait(SECONDS) == code
    assert cluster.calls()[1:] == ["mpirun heard SIGUSR1"]


def test_elements_of_an_array_have_folders_of_their_own(cluster: Cluster) -> None:
    """PBS would submit the whole array again."""
    done = cluster.run(pbs_script(max_restarts=1), PBS_JOBID="12[3].head", PBS_ARRAY_INDEX="3", CODE="75")
    assert done.returncode == 75
    assert "is not submitted again" in done.stderr
    assert cluster.names() == ["mpirun"]
    cluster.run(lsf_script(), LSB_JOBINDEX="4")
    folders = [call.rpartition(" ")[2] for call in cluster.calls()]
    assert folders == ["runs/hvdtrain-12-3", "runs/hvdtrain-7-4"]


def test_what_went_before_the_workers_is_not_time_that_they_have(cluster: Cluster) -> None:
    """The script of PBS counts its own seconds, of which an import on a slow disk may take many."""
    script = pbs_script(max_restarts=1, time_limit=3600, grace=5).replace("set -eu", "set -eu\nSECONDS=3538", 1)
    with cluster.running(script, "mpirun") as process:
        assert process.wait(SECONDS) == 75
    assert "mpirun heard SIGUSR1" in cluster.calls()


def test_lsf_counts_in_minutes() -> None:
    assert "#BSUB -wt 2\n" in lsf_script(time_limit=121, grace=100)
    with pytest.raises(UsageError, match="are 2 min for LSF"):
        lsf_script(time_limit=119, grace=100)


def test_jsruns_workers_are_told_by_jskill(cluster: Cluster) -> None:
    with cluster.running(lsf_script("jsrun"), "jsrun") as process:
        process.send_signal(signal.SIGURG)
        wait_until("jskill was called", lambda: "jskill -s 10 all" in cluster.calls(), SECONDS)
        assert process.poll() is None
    assert cluster.calls()[0].startswith(
        "jsrun --nrs=2 --rs_per_host=1 --tasks_per_rs=4 --cpu_per_rs=ALL_CPUS --gpu_per_rs=ALL_GPUS "
    )


def test_the_job_asks_for_hosts_as_its_scheduler_counts_them() -> None:
    seven: dict[str, Any] = {"np": 7, "gpus_per_host": 4}
    assert "#PBS -l select=1:ncpus=4:mpiprocs=4:ngpus=4+1:ncpus=3:mpiprocs=3:ngpus=4\n" in pbs_script(**seven)
    assert "#PBS -l select=2:ncpus=32:mpiprocs=4\n#PBS -l place=scatter\n" in pbs_script(cores_per_host=32)
    assert "#PBS -l nodes=2:ppn=32:gpus=4\n" in pbs_script(kind="torque", cores_per_host=32, gpus_per_host=4)
    assert '#BSUB -n 7\n#BSUB -R "span[ptile=4]"\n#BSUB -gpu "num=4:mode=shared:j_exclusive=yes"\n' in lsf_script(
        **seven
    )
    assert '#BSUB -n 64\n#BSUB -R "span[ptile=32]"\n' in lsf_script(cores_per_host=32)
    assert "#BSUB -nnodes 2\n" in lsf_script("jsrun")
    assert "#BSUB -W 1:31\n#BSUB -wa URG\n#BSUB -wt 2\n" in lsf_script(time_limit=5401, grace=61)


@pytest.mark.parametrize(
    ("render", "changes", "message"),
    [
        (pbs_script, {"time_limit": 60}, "--time-limit is 60 s"),
        (lsf_script, {"time_limit": 90, "grace": 90}, "--time-limit is 90 s"),
        (slurm_script, {"time_limit": 90, "grace": 90}, "--time-limit is 90 s"),
        (slurm_script, {"grace": 70_000}, "Slurm sends a signal at most 65535 s before"),
        (lsf_script, {"inner": "jsrun", "np": 7}, "use -np 8"),
        (lsf_script, {"command": ("train", "--config", "a.yaml"), "max_restarts": 1}, "no --output-dir"),
        (pbs_script, {"inner": "ssh", "binding": "none"}, "--binding"),
        (pbs_script, {"min_workers": 2}, "--min-workers"),
        (lsf_script, {"inner": "ssh", "allow_root": True}, "--allow-root"),
    ],
)
def test_what_a_script_cannot_do_is_refused(render: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        render(**changes)
    assert message in str(error.value)


def test_names_are_checked_and_torque_has_no_projects() -> None:
    for options in ({"queue": "a b"}, {"account": "-x"}, {"project": "$(id)"}):
        with pytest.raises(UsageError, match=f"--{next(iter(options))} is "):
            pbs.PbsOptions(**options)
    with pytest.raises(UsageError, match="--queue is "):
        lsf.LsfOptions(queue="a b")
    with pytest.raises(UsageError, match="Torque has no projects"):
        pbs.PbsOptions(project="a", kind="torque")


@pytest.mark.parametrize(
    ("said", "kind"),
    [("pbs_version = 23.06.06", "openpbs"), ("Version: 6.1.3\nCommit: 1", "torque"), ("version: 4.2.10", "torque")],
)
def test_a_qsub_is_known_by_its_version(said: str, kind: str, tmp_path: Path) -> None:
    qsub = tmp_path / "qsub"
    qsub.write_text(f"#!/bin/sh\necho '{said}'\n")
    qsub.chmod(0o755)
    assert pbs.kind_of(str(qsub)) == kind
    assert pbs.kind_of(None) == "openpbs"
