"""A training that is killed, stopped, ended and robbed of checkpoints at random ends as an undisturbed one would."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.processes import run_command
from support.runs import read_json

QUIET = ["--progress", "none", "--report", "never"]


def test_a_drill_ends_with_the_weights_of_an_undisturbed_run(tmp_path: Path) -> None:
    """The schedule is that of the seed, but where a fault strikes depends on the machine: any place must do. The job
    may end before the last one."""
    train = ["train", "--epochs", "12", "--checkpoint-interval", "5", "--output-dir", "out", *QUIET]
    faults = ["--faults", "kill,stop,slow,corrupt,term", "--every", "1.5s", "--seed", "5", "--count", "3", "--compare"]
    faults += ["--save", "drill.json"]
    finished = run_command(["python", "-m", "hvdtrain", "chaos", "-np", "2", *faults, "--", *train], 400, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    assert finished.stderr.count("hvdtrain chaos: ") >= 1, finished.tail()
    assert "the weights are those of an undisturbed run" in finished.stdout, finished.tail()
    rows = {
        row[0].strip(): row[1].strip()
        for row in (line.split("│") for line in finished.stdout.splitlines())
        if len(row) == 2
    }
    assert (rows["ended"], rows["coverage"]) == ("well", "exact")
    record = read_json(tmp_path / "drill.json")
    disturbed, calm = record["disturbed"], record["undisturbed"]
    assert len(disturbed["done"]) == int(rows["faults"])
    assert disturbed["exact"]
    assert disturbed["updates"] == calm["updates"] == 12 * 30
    assert disturbed["measures"] == calm["measures"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("framework", "options"),
    [("torch", "--data.processes 1"), ("torch", "--shard gradients --accumulate-steps 2"), ("tensorflow", "")],
    ids=["torch-processes", "torch-shards", "tensorflow"],
)
def test_the_same_number_of_workers_ends_with_the_same_weights(framework: str, options: str, tmp_path: Path) -> None:
    """With --min-workers as many as all, survivors wait for the new worker: no sum has other terms."""
    train = ["train", "--framework", framework, *options.split(), "--epochs", "5", "--checkpoint-interval", "5"]
    train += ["--output-dir", "out"]
    faults = ["--faults", "kill", "--every", "1.5s", "--seed", "187", "--count", "2", "--min-workers", "2", "--compare"]
    command = ["python", "-m", "hvdtrain", "chaos", "-np", "2", *faults, "--", *train, *QUIET]
    interpreter = "fresh" if "processes" in options else "warm workers"  # a worker's own processes are killed with it
    finished = run_command(command, 800, cwd=tmp_path, interpreter=interpreter)
    assert finished.returncode == 0, finished.tail()
    assert "the weights are those of an undisturbed run" in finished.stdout, finished.tail()
    assert "train on, of which 1 joined" in finished.stderr, finished.tail()
    if "processes" in options:
        assert ", a process that it had started" in finished.stderr, finished.tail()


@pytest.mark.timeout(600)
def test_virtual_workers_end_with_the_same_weights_on_those_that_are_left(tmp_path: Path) -> None:
    """Three workers lose one or two, who come back."""
    train = ["train", "--framework", "torch", "--virtual-workers", "4", "--epochs", "6", "--checkpoint-interval", "5"]
    faults = ["--faults", "kill", "--every", "1.5s", "--seed", "5", "--count", "2", "--min-workers", "1", "--compare"]
    command = ["python", "-m", "hvdtrain", "chaos", "-np", "3", *faults, "--", *train, "--output-dir", "out", *QUIET]
    finished = run_command(command, 500, cwd=tmp_path, interpreter="warm workers")
    assert finished.returncode == 0, finished.tail()
    assert "the weights are those of an undisturbed run" in finished.stdout, finished.tail()
    assert "2 workers train on" in finished.stderr, finished.tail()


@pytest.mark.timeout(600)
def test_stages_of_two_replicas_end_with_the_weights_of_an_undisturbed_run(tmp_path: Path) -> None:
    """Two pipelines of two workers lose one, and all four start again."""
    train = ["train", "--framework", "torch", "--parallel.stages", "2", "--parallel.micro-batches", "2"]
    train += ["--checkpoint-interval", "5", "--output-dir", "out", *QUIET, "--epochs", "6"]
    faults = ["--faults", "kill", "--every", "1.5s", "--seed", "2", "--count", "1", "--compare"]
    command = ["python", "-m", "hvdtrain", "chaos", "-np", "4", *faults, "--", *train]
    finished = run_command(command, 500, cwd=tmp_path, interpreter="warm workers")
    assert finished.returncode == 0, finished.tail()
    assert "the weights are those of an undisturbed run" in finished.stdout, finished.tail()


def test_a_full_disk_is_survived(tmp_path: Path) -> None:
    """A limit of rank 0's files stands for it: metrics and checkpoints fail, the job starts again and goes on."""
    train = ["train", "--epochs", "8", "--checkpoint-interval", "5", "--output-dir", "out", *QUIET]
    faults = ["--faults", "full", "--every", "0.8s", "--seed", "3", "--count", "1", "--compare"]
    command = ["python", "-m", "hvdtrain", "chaos", "-np", "2", *faults, "--", *train]
    finished = run_command(command, 400, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    assert "hvdtrain chaos: no file of rank 0 could grow for " in finished.stderr, finished.tail()
    assert "File too large" in finished.stderr, finished.tail()
    assert "the weights are those of an undisturbed run" in finished.stdout, finished.tail()
