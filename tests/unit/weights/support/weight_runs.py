"""Run folders with given weights, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdtrain.checkpoints.format import Checkpoint, Position, write_checkpoint

Arrays = dict[str, NDArray[Any]]


def write_run(
    folder: Path,
    weights: Arrays,
    framework: str,
    task: str = "digits",
    task_args: dict[str, Any] | None = None,
    averages: Arrays | None = None,
    **about: Any,
) -> Path:
    """A run folder whose newest checkpoint, of step 7, holds `weights` and, if given, their averages."""
    state: Arrays = {f"model/{name}": array for name, array in weights.items()}
    state |= {f"ema/{name}": array for name, array in (averages or {}).items()}
    manifest = {"framework": framework, "task": task, "task_args": task_args or {}, **about}
    write_checkpoint(folder / "checkpoints" / "step_00000007", Checkpoint(state, Position(7, 70), manifest))
    return folder


def random_like(weights: Arrays, seed: int = 0) -> Arrays:
    """Floats from 0.1 to 1 instead of floats: no zeros, and variances stay positive."""
    random = np.random.default_rng(seed)
    return {
        name: random.uniform(0.1, 1, array.shape).astype(array.dtype) if array.dtype.kind == "f" else array
        for name, array in weights.items()
    }
