"""`hvdtrain launch` through the launchers that are installed: real workers, their result, the launcher's exit code."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.processes import run_command
from support.runs import result_of

DEADLINE = 240
ROOT = ["--allow-root"] if os.geteuid() == 0 else []


@pytest.mark.parametrize(
    "launcher", [["horovodrun"], ["horovodrun", "--controller", "mpi"], ["mpirun", *ROOT]], ids=" ".join
)
def test_two_workers_train_together(launcher: list[str], tmp_path: Path) -> None:
    """In a folder with files that bear the names of modules of ours."""
    for name in ("launch", "data_sharding", "config"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('the {name}.py of the user')", encoding="utf-8")
    out = tmp_path / "it's a run"
    job = ["train", "--max-steps", "3", "--output-dir", str(out)]
    finished = run_command(
        [sys.executable, "-m", "hvdtrain", "launch", *launcher, "-np", "2", "--", *job], DEADLINE, cwd=tmp_path
    )
    assert finished.returncode == 0, finished.tail()
    result = result_of(out)
    assert (result["world_size"], result["steps"]) == (2, 3)


@pytest.mark.parametrize("launcher", [["horovodrun"], ["mpirun", *ROOT]], ids=" ".join)
def test_a_refused_job_ends_with_its_message(launcher: list[str], tmp_path: Path) -> None:
    finished = run_command(
        [sys.executable, "-m", "hvdtrain", "launch", *launcher, "-np", "2", "--", "train", "--epoch", "3"],
        DEADLINE,
        cwd=tmp_path,
    )
    assert finished.returncode != 0
    assert "--epochs" in finished.stdout + finished.stderr, finished.tail()
