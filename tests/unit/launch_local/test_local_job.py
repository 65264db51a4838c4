"""What workers inherit, and what a restart changes in their command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hvdtrain.errors import UsageError
from hvdtrain.topology import detect_topology
from launch.local import LocalJob
from launch.local_environment import worker_environment
from launch.local_restart import command_for_restart, flag, trains, with_run_folder

PYTHON = ("python", "-m", "hvdtrain")


def environment(rank: int, np: int, inherited: dict[str, str]) -> dict[str, str]:
    return worker_environment(LocalJob(PYTHON, np, environment=inherited), rank, {"ADDR": "x"}, "mark", 0)


def test_hvdtrain_and_horovod_read_the_same_place() -> None:
    topology = detect_topology(environment(2, 3, {"OMPI_COMM_WORLD_RANK": "0", "RANK": "7", "PMIX_RANK": "1"}))
    assert (topology.rank, topology.size, topology.local_rank, topology.local_size) == (2, 3, 2, 3)
    assert (topology.node_rank, topology.num_nodes) == (0, 1)


def test_what_the_user_set_stays_and_other_launchers_ranks_go() -> None:
    inherited = {"OMP_NUM_THREADS": "7", "HOROVOD_CYCLE_TIME": "5", "PMI_RANK": "1", "WORLD_SIZE": "9", "HOME": "/h"}
    made = environment(0, 2, inherited)
    assert {name: made.get(name) for name in inherited} == {**inherited, "PMI_RANK": None, "WORLD_SIZE": None}
    assert int(made["MKL_NUM_THREADS"]) >= 1
    assert made["HOROVOD_CPU_OPERATIONS"] == "gloo"


@pytest.mark.parametrize("change", [{"np": 0}, {"command": ()}, {"max_restarts": -1}, {"grace": float("nan")}])
def test_jobs_that_cannot_be(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        LocalJob(**{"command": PYTHON, "np": 2, **change})


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (PYTHON, True),
        ((*PYTHON, "train", "--epochs", "3"), True),
        (("python", "-u", "-m", "hvdtrain", "--epochs", "3"), True),
        (("/usr/bin/hvdtrain", "train"), True),
        ((*PYTHON, "shard", "verify"), False),
        (("python", "script.py", "-m", "hvdtrain"), False),
        (("sleep", "5"), False),
    ],
)
def test_what_trains(command: tuple[str, ...], answer: bool) -> None:
    assert trains(command) is answer


def test_flags_are_found_in_every_spelling() -> None:
    assert flag(("--output-dir", "a"), "output-dir") == "a"
    assert flag(("--output_dir=a", "--output-dir", "b"), "output-dir") == "b"
    assert flag(("--output-dirs", "a"), "output-dir") is None


def test_all_starts_share_one_run_folder(tmp_path: Path) -> None:
    job = LocalJob(PYTHON, 2, max_restarts=1, working_dir=str(tmp_path))
    folder = flag(with_run_folder(job).command, "output-dir")
    assert folder is not None
    assert folder.startswith("runs/")
    named = LocalJob((*PYTHON, "--output-dir", "a"), 2, max_restarts=1)
    assert with_run_folder(named) == named
    with pytest.raises(UsageError, match="--config but no --output-dir"):
        with_run_folder(LocalJob((*PYTHON, "--config", "a.yaml"), 2, max_restarts=1))


@pytest.mark.parametrize(
    ("resume", "checkpoint", "resumes"),
    [("never", False, True), ("never", True, True), ("elsewhere", False, False), ("elsewhere", True, True)],
)
def test_a_restart_continues_from_its_own_checkpoint(
    resume: str, checkpoint: bool, resumes: bool, tmp_path: Path
) -> None:
    job = LocalJob((*PYTHON, "--resume", resume, "--output-dir", "out"), 2, working_dir=str(tmp_path))
    if checkpoint:
        (tmp_path / "out/checkpoints").mkdir(parents=True)
        (tmp_path / "out/checkpoints/latest").write_text("step_1\n")
    assert (flag(command_for_restart(job), "resume") == "auto") is resumes
