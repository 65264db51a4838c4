"""`hvdtrain launch` as users call it: what it prints, what it refuses, what it becomes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from hvdtrain.cli.launch import BUILT_IN

SECONDS = 60


@dataclass(frozen=True)
class Ended:
    code: int
    stdout: str
    stderr: str


def launch(folder: Path, *argv: str, **variables: str) -> Ended:
    done = subprocess.run(
        [sys.executable, "-m", "hvdtrain", "launch", *argv],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **variables},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


TRAIN_JOB = ["kubernetes", "-np", "2", "--image", "a", "--kind", "TrainJob"]
MPIRUN = ("mpirun", "--mpi", "openmpi4", "--dry-run")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["horovodrum", "-np", "2"], "did you mean 'horovodrun'"),
        (["local", "-np", "0"], "np is 0"),
        (["local"], "give it with -np"),
        (["local", "-np", "2", "-H", "a:2"], "unrecognized arguments: -H"),
        (["local", "-np", "two"], "invalid int value"),
        ([*TRAIN_JOB, "--mpi", "mpich"], "--mpi was given with --kind TrainJob"),
        (["kubernetes", "-np", "2", "--image", "a", "--runtime", "x"], "--runtime was given with --kind MPIJob"),
        ([*MPIRUN, "-H", "a;touch x:2"], "is not a host name"),
        ([*MPIRUN, "-H", "-oProxyCommand=x"], "expected one argument"),
        ([*MPIRUN, "-H", "-oProxyCommand=touch x"], "is not a host name"),
        ([*MPIRUN, "-H=-oProxyCommand=touch x"], "is not a host name"),
        ([*MPIRUN, "-H", "a:0"], "slots of a are '0'"),
        ([*MPIRUN, "-H", "a:2", "-np", "3"], "has 3 workers. Its hosts have 2 slots"),
        ([*MPIRUN, "-H", "a:2", "--hostfile", "h"], "not allowed with"),
        ([*MPIRUN, "--hostfile", "typo"], "typo:2: 'slot=2' is not understood"),
        ([*MPIRUN, "--hostfile", "none"], "cannot be used"),
        ([*MPIRUN, "-np", "2", "--pass-env", "KEY=hunter2"], "export the variable"),
        ([*MPIRUN, "-np", "2", "--time-limit", "soon"], "is not a time"),
        ([*MPIRUN, "-np", "2", "--", "trian"], "did you mean 'train'"),
        (
            [*MPIRUN, "-np", "2", "--", "launch", "local"],
            "neither a command of hvdtrain that workers can run, nor a Python script",
        ),
        ([*MPIRUN, "-np", "2", "--epochs", "3"], "come after --"),
        (["mpirun", "--mpi", "lam", "-np", "2"], "invalid choice"),
        (["slurm", "-np", "2", "--dry-run", "--partition", "a b"], "--partition is 'a b'"),
        (["pbs", "-np", "2", "--dry-run", "--queue", "a b"], "--queue is 'a b'"),
        (["lsf", "-np", "2", "--dry-run", "--start", "srun"], "invalid choice"),
        (["lsf", "-np", "2", "--walltime", "1:00:00"], "did you mean --time-limit?"),
        (["local", "-np", "2", "--dry-run", "--min-workers", "1"], "has no --max-restarts"),
        (["local", "-np", "2", "--dry-run", "--max-restarts", "1", "--", "--config", "a"], "has --config but no"),
        (["ssh", "-H", "a:2", "--dry-run", "--max-restarts", "1", "--", "--config", "a"], "has --config but no"),
        (["pbs", "-np", "2", "--partition", "gpu"], "did you mean --queue?"),
        (["kubernetes", "-np", "2", "--dry-run"], "name it with --image"),
    ],
)
def test_a_wrong_call_is_refused_in_three_parts(argv: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "typo").write_text("a slots=2\nb slot=2\n")
    ended = launch(tmp_path, *argv)
    assert ended.code == 2, ended
    assert message in ended.stderr
    assert "HINT: " in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "hunter2" not in ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["typo"]


def test_help_lists_what_there_is(tmp_path: Path) -> None:
    ended = launch(tmp_path, "--help")
    assert ended.code == 0
    assert [name in ended.stdout for name in BUILT_IN] == [True] * len(BUILT_IN)
    for name in BUILT_IN:
        assert launch(tmp_path, name, "--help").code == 0


def test_workers_default_to_all_slots_and_the_command_to_train(tmp_path: Path) -> None:
    ended = launch(tmp_path, *MPIRUN, "-H", "a:2,b:3")
    assert ended.code == 0, ended
    assert "-np 5" in ended.stdout
    assert ended.stdout.rstrip().endswith(f"{sys.executable} -m hvdtrain train")


def test_hosts_come_from_the_allocation_around(tmp_path: Path) -> None:
    ended = launch(tmp_path, *MPIRUN, SLURM_JOB_NODELIST="n[1-2]", SLURM_TASKS_PER_NODE="4(x2)")
    assert "--host n1:4,n2:4" in ended.stdout
    assert "hosts from SLURM_JOB_NODELIST" in ended.stderr


def test_a_rank_table_chooses_the_gpus(tmp_path: Path) -> None:
    devices = '[{"device_id": "6", "rank_id": "0"}, {"device_id": "4", "rank_id": "1"}]'
    (tmp_path / "t.json").write_text(f'{{"server_list": [{{"server_id": "a", "device": {devices}}}]}}')
    ended = launch(tmp_path, *MPIRUN, "--rank-table", "t.json")
    assert "export CUDA_VISIBLE_DEVICES=6,4" in ended.stdout, ended
    assert "-x CUDA_VISIBLE_DEVICES" in ended.stdout


def test_variables_are_passed_by_name_and_a_job_around_is_not(tmp_path: Path) -> None:
    ended = launch(tmp_path, *MPIRUN, "-np", "2", "--pass-env", "KEY", KEY="hunter2", HOROVOD_CYCLE_TIME="3")
    assert "-x KEY" in ended.stdout
    assert "-x HOROVOD_CYCLE_TIME" in ended.stdout
    assert "hunter2" not in ended.stdout


@pytest.mark.parametrize("launcher", ["local", "horovodrun"])
def test_a_rank_launches_no_job_of_its_own(launcher: str, tmp_path: Path) -> None:
    inside = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    ended = launch(tmp_path, launcher, "-np", "2", "--", "env", **inside)
    assert ended.code == 2, ended
    assert "itself rank 1 of 2" in ended.stderr


@pytest.mark.parametrize(
    ("around", "code"),
    [
        ({"PET_NNODES": "3", "PET_NODE_RANK": "1"}, 2),  # each of three pods would launch a job
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'}, 2),
        ({"PET_NNODES": "1", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "2"}, 0),
        ({"RANK": "0", "WORLD_SIZE": "1", "NPROC_PER_NODE": "2"}, 0),
    ],
)
def test_a_job_is_launched_where_no_other_process_would_launch_it_too(
    around: dict[str, str], code: int, tmp_path: Path
) -> None:
    ended = launch(tmp_path, "local", "-np", "1", "--", "env", **around)
    assert ended.code == code, ended


@pytest.mark.parametrize(
    ("launcher", "program", "script", "first"),
    [
        ("slurm", "sbatch", "digits.sbatch", "#SBATCH --job-name=digits"),
        ("pbs", "qsub", "digits.pbs", "#PBS -S /bin/bash"),
        ("lsf", "bsub", "digits.lsf", "#BSUB -J digits"),
    ],
)
def test_without_the_clusters_program_the_script_is_written_and_named(
    launcher: str, program: str, script: str, first: str, tmp_path: Path
) -> None:
    ended = launch(tmp_path, launcher, "-np", "2", "--name", "digits", PATH=str(tmp_path))
    assert ended.code == 2, ended
    assert f"There is no {program} here." in ended.stderr
    assert f"written to {tmp_path / script} and not started" in ended.stderr
    assert (tmp_path / script).read_text().startswith(f"#!/bin/bash\n{first}\n")


def test_bsub_reads_the_script_and_its_exit_code_is_ours(tmp_path: Path) -> None:
    program = tmp_path / "bsub"
    program.write_text("#!/bin/sh\ngrep -q '^#BSUB -J hvdtrain$' && exit 37\n")
    program.chmod(0o755)
    ended = launch(tmp_path, "lsf", "-np", "2", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert ended.code == 37, ended


def test_the_launchers_exit_code_is_ours(tmp_path: Path) -> None:
    program = tmp_path / "kubectl"
    program.write_text('#!/bin/sh\ntest -f "$3" && exit 37\n')
    program.chmod(0o755)
    ended = launch(tmp_path, "kubernetes", "-np", "2", "--image", "a/b:1", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert ended.code == 37, ended
