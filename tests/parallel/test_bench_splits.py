"""`hvdtrain bench pipeline` and `bench scaling`: real runs on several ranks, told as tables, JSON and pictures."""

from __future__ import annotations

from pathlib import Path

from support.processes import run_command
from support.ranks import run_ranks
from support.runs import read_json

SMALL = ["--framework", "torch", "--task", "synthetic", "--model", "cnn", "--task-args.side", "32"]


def test_a_model_is_split_and_pipelined(tmp_path: Path) -> None:
    own = ["--global-batch-size", "8", "--split-sizes", "2,4,99", "--seconds", "0.2", "--out", "out"]
    finished = run_ranks(
        ["python", "-m", "hvdtrain", "bench", "pipeline", *SMALL, *own], 2, "mpirun", 240, cwd=tmp_path
    )
    assert finished.returncode == 0, finished.tail()
    found = read_json(tmp_path / "out" / "pipeline.json")
    assert [arm["name"] for arm in found["arms"]] == ["one device", "naive split", "pipelined, 2", "pipelined, 4"]
    assert all(len(arm["seconds"]) == 5 and min(arm["seconds"]) > 0 for arm in found["arms"])
    assert "micro batches of 99 records are left out" in finished.stdout, finished.tail()
    assert (tmp_path / "out" / "pipeline.svg").read_text().startswith("<?xml")


def test_one_worker_without_devices_is_refused(tmp_path: Path) -> None:
    finished = run_command(["python", "-m", "hvdtrain", "bench", "pipeline", *SMALL], 100, cwd=tmp_path)
    assert finished.returncode == 2, finished.tail()
    assert "--parallel.devices is not given" in finished.stderr, finished.tail()


def test_two_workers_are_compared_with_one(tmp_path: Path) -> None:
    own = ["--global-batch-size", "8", "--sizes", "2", "--repeats", "1", "--iters", "1", "--out", "out"]
    finished = run_command(["python", "-m", "hvdtrain", "bench", "scaling", *SMALL, *own], 240, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    points = read_json(tmp_path / "out" / "scaling.json")["points"]
    assert [(point["mode"], point["workers"]) for point in points] == [
        ("fixed global batch", 1),
        ("fixed global batch", 2),
        ("fixed batch of a worker", 1),
        ("fixed batch of a worker", 2),
    ]
    assert [point["efficiency"] for point in points if point["workers"] == 1] == [1, 1]
    assert all(point["predicted"] > 0 for point in points if point["workers"] == 2)
    assert (tmp_path / "out" / "scaling.svg").read_text().startswith("<?xml")


def test_a_run_that_fails_is_told(tmp_path: Path) -> None:
    own = ["--global-batch-size", "8", "--sizes", "2", "--repeats", "1", "--iters", "1", "--starter", "false {np}"]
    finished = run_command(["python", "-m", "hvdtrain", "bench", "scaling", *SMALL, *own], 240, cwd=tmp_path)
    assert finished.returncode == 1, finished.tail()
    assert "A run that was to be measured ended with exit code 1." in finished.stderr, finished.tail()
