"""Pictures and text on several ranks: the built-in tasks from files in their own formats, in both frameworks.

test_migrate.py trains ResNets.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes import run_command
from support.ranks import run_ranks
from support.runs import lines_of, read_json

DEADLINE_S = 240
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # for whoever would take all cores: other tests run beside these
Train = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """22 records to train on and 9 to validate on, in CIFAR-10's binary version."""
    folder, random = tmp_path_factory.mktemp("cifar10"), np.random.default_rng(0)
    for name, count in (("data_batch_1", 12), ("data_batch_2", 10), ("test_batch", 9)):
        labels = random.integers(0, 10, count)
        pixels = random.integers(0, 25, (count, 3072)) + labels[:, None] * 25
        (folder / f"{name}.bin").write_bytes(np.column_stack([labels, pixels]).astype(np.uint8).tobytes())
    return folder


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Trains at a number of ranks; returns the result, with each line of training metrics as "training"."""

    def run(size: int, *argv: str) -> dict[str, Any]:
        out = tmp_path / f"{size}-{len(list(tmp_path.iterdir()))}"
        command = ["-m", "hvdtrain", *argv, "--output-dir", str(out), "--log-interval", "1", "--progress", "none"]
        if size == 1:
            finished = run_command(["python", *command], DEADLINE_S, ONE_THREAD, tmp_path)
        else:
            finished = run_ranks(["python", *command], size, "horovodrun-gloo", DEADLINE_S, None, tmp_path)
        result = out / "result.json"
        assert result.exists(), finished.tail()
        lines = lines_of(out)
        return {**read_json(result), "training": [line for line in lines if line.get("split") == "train"]}

    return run


@pytest.mark.parametrize(("framework", "ranks"), [("torch", 3), ("tensorflow", 2)])
def test_mixed_pictures_train_alike_at_every_world_size(
    train: Train, cifar10: Path, framework: str, ranks: int
) -> None:
    """Crops, flips, partners and shares belong to records, so several ranks see what one process sees."""
    argv = ["--task", "cifar10", "--model", "cnn", "--framework", framework, "--data.dir", str(cifar10)]
    argv += ["--task-args.mixup", "0.4", "--task-args.label-smoothing", "0.1", "--lr", "0.01", "--epochs", "2"]
    alone, several = (train(size, *argv, "--global-batch-size", "8") for size in (1, ranks))
    assert len(alone["training"]) == len(several["training"]) == 6
    for one, other in zip(
        [*alone["training"], alone["metrics"]], [*several["training"], several["metrics"]], strict=True
    ):
        for name in ("loss", "accuracy", "top5"):
            assert other[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6)


def test_text_trains_alike_at_every_world_size(train: Train, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "any.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 12)
    sizes = ["--task-args.context", "16", "--task-args.width", "16", "--task-args.blocks", "1"]
    argv = ["--task", "text", "--data.dir", str(tmp_path / "data"), "--global-batch-size", "8", "--epochs", "1", *sizes]
    alone, several = (train(size, *argv) for size in (1, 3))
    for one, other in zip(alone["training"], several["training"], strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-4)
