"""`hvdtrain bench step` with real workers: Horovod's protocol through hvdtrain's own steps, in both frameworks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.ranks import run_ranks

DEADLINE_S = 240
ARGV = ["--task", "synthetic", "--model", "cnn", "--task-args.side", "16", "--batch-size", "4", "--json"]
COUNTS = ["--num-warmup-batches", "2", "--num-batches-per-iter", "2", "--num-iters", "3"]


@pytest.mark.parametrize(("launcher", "framework"), [("mpirun", "torch"), ("horovodrun-gloo", "tensorflow")])
def test_two_workers_measure(
    launcher: str, framework: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    calls = ["--steps-per-call", "2"] if framework == "tensorflow" else []
    command = ["python", "-m", "hvdtrain", "bench", "step", "--framework", framework, *ARGV, *COUNTS, *calls]
    cache = {"HVDTRAIN_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    finished = run_ranks(command, 2, launcher, DEADLINE_S, cache, tmp_path)
    assert finished.returncode == 0, finished.tail()
    (line,) = (line for line in finished.stdout.splitlines() if '"per_worker"' in line)
    report = json.loads(line[line.index("{") :])
    assert (report["workers"], report["framework"], report["device"], report["unit"]) == (2, framework, "CPU", "img")
    assert (report["batch_size"], report["global_batch_size"]) == (4, 8)
    assert report["total"]["mean"] == pytest.approx(2 * report["per_worker"]["mean"])
    for split in report["seconds_per_step"]:
        assert 0 < split["allreduce"] < split["step"]
        assert split["step"] == pytest.approx(split["compute"] + split["allreduce"])
    assert len(report["seconds_per_step"]) == len(report["hosts"]) == 2
    assert report["loss"] > 0
    assert report["tuned"] is None
    assert list(tmp_path.iterdir()) == []


def test_buckets_are_chosen_first_where_that_is_asked_for(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A small model, whose gradients of less than 1 MiB make several MiB, so that they can be cut in different ways."""
    own = ["--task", "digits", "--task-args.width", "60", "--batch-size", "4", "--tune", "auto", "--json"]
    cache = {"HVDTRAIN_CACHE_DIR": str(tmp_path_factory.mktemp("cache")), "OMP_NUM_THREADS": "1"}
    command = ["python", "-m", "hvdtrain", "bench", "step", "--framework", "torch", *COUNTS, *own]
    finished = run_ranks(command, 2, "mpirun", DEADLINE_S, cache, tmp_path)
    assert finished.returncode == 0, finished.tail()
    (line,) = finished.stdout.splitlines()
    assert json.loads(line[line.index("{") :])["tuned"]["from"] == "measurement"
