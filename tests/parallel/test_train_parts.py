"""Checkpoints that several workers write: the same weights, resumed in either way, and no folder that is not shared."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from support.ranks import run_ranks

from hvdtrain.checkpoints.format import read_checkpoint
from hvdtrain.checkpoints.store import CheckpointStore

DEADLINE_S = 240
STEPS = ["--epochs", "2", "--checkpoint-interval", "5"]


def train(out: Path, *argv: str, size: int = 2) -> Any:
    command = ["python", "-m", "hvdtrain", *STEPS, "--output-dir", str(out), *argv]
    finished = run_ranks(command, size, "horovodrun-gloo", DEADLINE_S, cwd=out.parent)
    assert finished.returncode == 0, finished.tail()
    return finished


def test_parts_of_two_workers_are_one_checkpoint(tmp_path: Path) -> None:
    """Interrupted once, and then without parts: the weights are those of a run that nobody interrupted."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(whole, "--optimizer", "adam", "--ema-decay", "0.9")
    options = ("--optimizer", "adam", "--ema-decay", "0.9")
    train(parts, *options, "--checkpoint-writers", "2", "--max-steps", "7")
    stopped = CheckpointStore(parts / "checkpoints", 1).paths()[-1]
    names = sorted(path.name for path in stopped.iterdir())
    assert all(re.fullmatch(r"manifest\.json|(extra|model|optimizer)-0000[12]-of-00002\.safetensors", n) for n in names)
    sizes = [sum((stopped / name).stat().st_size for name in names if f"-{part:05}-" in name) for part in (1, 2)]
    assert min(sizes) > 0.25 * sum(sizes)
    train(parts, *options)
    one, other = (read_checkpoint(CheckpointStore(run / "checkpoints", 1).paths()[-1]) for run in (whole, parts))
    assert one.position == other.position
    assert one.state.keys() == other.state.keys()
    assert all(np.array_equal(one.state[name], other.state[name]) for name in one.state)
