"""The learning rate as a pure function of the step: nothing to save, nothing to step twice."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Scaling = Literal["none", "linear", "sqrt"]
Shape = Literal["constant", "cosine"]


def scaled_lr(base: float, scaling: Scaling, global_batch_size: int, reference_batch_size: int) -> float:
    """The peak learning rate for a global batch, given the one that was tuned for the reference batch.

    "linear" is Goyal et al. 2017 (arXiv:1706.02677), for SGD; "sqrt" is Krizhevsky 2014 (arXiv:1404.5997), usual for
    Adam.
    World size does not appear: only the global batch matters.
    """
    ratio = global_batch_size / reference_batch_size
    return base * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[scaling]


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up to `peak`, then `shape` down to 0 at `total_steps`.

    Attributes:
        peak: the highest learning rate.
        total_steps: updates in the whole training, whether or not this run stops earlier.
        warmup_steps: updates until the peak is reached; the first one already moves (lr > 0).
        shape: "constant" or "cosine" (Loshchilov and Hutter 2017, without restarts).
    """

    peak: float
    total_steps: int
    warmup_steps: int = 0
    shape: Shape = "constant"

    def lr(self, step: int) -> float:
        """Learning rate of update `step`, counted from 0."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        if self.shape == "constant":
            return self.peak
        progress = (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        return self.peak * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
