"""`hvdtrain plan` on two ranks: it measures, predicts, tries, and leaves a config that trains."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.processes import run_command
from support.ranks import run_ranks
from support.runs import read_json, result_of


@pytest.mark.parametrize(("launcher", "framework"), [("mpirun", "torch"), ("horovodrun-gloo", "tensorflow")])
def test_a_plan_is_made_and_trains(launcher: str, framework: str, tmp_path: Path) -> None:
    command = ["python", "-m", "hvdtrain", "plan", "--framework", framework, "--seconds", "0.3", "--workers", "1,2,64"]
    verify = ["--verify"] if framework == "torch" else []
    finished = run_ranks([*command, *verify], 2, launcher, 240, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    assert "recommended for 2 workers: " in finished.stdout, finished.tail()
    plan = read_json(tmp_path / "plan" / "plan.json")
    assert plan["workload"]["layers"], plan
    assert plan["cluster"]["inner"]["bandwidth"] > 0
    if framework == "torch":
        assert {one["name"] for one in plan["verified"]} >= {"ring", "ZeRO-1", "ZeRO-2", "pipeline 2", "naive split 2"}
        assert all(len(one["measured"]) == 5 for one in plan["verified"])
    train = ["python", "-m", "hvdtrain", "--config", "plan/plan.yaml", "--epochs", "1", "--output-dir", "out"]
    finished = run_ranks(train, 2, launcher, 240, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    assert result_of(tmp_path / "out")["epochs"] == 1


def test_three_workers_with_unequal_parts_of_a_batch(tmp_path: Path) -> None:
    """Only one of them has two records, which could be halved. Three stages need process sets where there is no MPI."""
    launch = ["python", "-m", "hvdtrain", "launch", "local", "-np", "3", "--"]
    few = ["--global-batch-size", "4", "--seconds", "0.3"]
    plan = ["plan", "--framework", "torch", "--workers", "3", "--verify", *few]
    finished = run_command([*launch, *plan], 240, {"OMP_NUM_THREADS": "1"}, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    found = read_json(tmp_path / "plan" / "plan.json")
    assert {one["name"] for one in found["verified"]} >= {"ring", "ZeRO-1", "pipeline 3", "naive split 3"}


def test_where_nothing_fits_a_plan_ends_with_code_2(tmp_path: Path) -> None:
    options = ["--framework", "torch", "--seconds", "0.1", "--workers", "1,2", "--memory", "1MiB", "--all-tables"]
    finished = run_command(["python", "-m", "hvdtrain", "plan", *options], 120, cwd=tmp_path)
    assert finished.returncode == 2, finished.tail()
    assert finished.stdout.count("No way fits into the memory. ") == 2, finished.tail()
    assert (tmp_path / "plan" / "plan.json").exists()


SMALL_MACHINE = """
import os, runpy

sysconf = os.sysconf
os.sysconf = lambda name: 1000 if name == "SC_PHYS_PAGES" else sysconf(name)
runpy.run_module("hvdtrain", run_name="__main__")
"""


def test_where_nothing_fits_parallel_auto_trains_nothing(tmp_path: Path) -> None:
    (tmp_path / "small_machine.py").write_text(SMALL_MACHINE)
    train = ["train", "--framework", "torch", "--parallel", "auto", "--output-dir", "out"]
    train += ["--progress", "none", "--report", "never"]
    finished = run_ranks(["python", "small_machine.py", *train], 2, "mpirun", 120, cwd=tmp_path)
    assert finished.returncode == 2, finished.tail()
    assert finished.stderr.count("No way to train fits into ") == 1, finished.tail()
    assert "HINT: more workers, a smaller batch and --activation-checkpointing need less" in finished.stderr
    assert not (tmp_path / "out" / "metrics.jsonl").exists()
