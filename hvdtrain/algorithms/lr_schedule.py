"""The learning rate as a pure function of the step: there is no state to save."""

import math
from dataclasses import dataclass
from typing import Final, Literal

from hvdtrain.errors import UsageError

_LARGEST: Final = 3.4e38

Scaling = Literal["none", "linear", "sqrt"]
Shape = Literal["constant", "linear", "polynomial", "cosine", "step"]


def scaled_lr(base: float, scaling: Scaling, global_batch_size: int, reference_batch_size: int) -> float:
    """The peak learning rate for a global batch, given the one that was tuned for the reference batch.

    "linear" is Goyal et al. 2017 (arXiv:1706.02677), for SGD; "sqrt" is Krizhevsky 2014 (arXiv:1404.5997), usual for
    Adam. World size does not appear: only the global batch matters. Raises UsageError: float32 does not hold it.
    """
    ratio = global_batch_size / reference_batch_size
    scaled = base * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[scaling]
    if scaled > _LARGEST:
        raise UsageError(
            f"The learning rate {base:g}, scaled to the global batch of {global_batch_size}, is {scaled:g}.",
            "float32 does not hold such a number.",
            "choose a smaller --lr.",
        )
    return scaled


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up to `peak`, then `shape` down to `least` at `total_steps`, or down at `milestones`."""

    peak: float  # the highest learning rate
    total_steps: int  # updates in the whole training, whether or not this run stops earlier
    warmup_steps: int = 0  # updates until the peak is reached; the first one already moves (lr > 0)
    # "constant"; "cosine" (Loshchilov and Hutter 2017, without restarts); "polynomial", where what lies above `least`
    # falls with (1 - progress) to `power`; "linear", the same to 1; or "step"
    shape: Shape = "constant"
    least: float = 0.0  # the learning rate at the end, of linear, polynomial and cosine
    power: float = 2.0  # of polynomial
    # steps, counted from the start of training, from which on "step" multiplies by `gamma` again
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1  # of step

    def lr(self, step: int) -> float:
        """Learning rate of update `step`, counted from 0."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        if self.shape == "constant":
            return self.peak
        if self.shape == "step":
            return self.peak * self.gamma ** sum(step >= milestone for milestone in self.milestones)
        return self.least + (self.peak - self.least) * self._share_left(step)

    def _share_left(self, step: int) -> float:
        """From 1 at the peak to 0 at the end, and after it."""
        progress = (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        if self.shape == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
        return float(max(0.0, 1.0 - progress) ** (self.power if self.shape == "polynomial" else 1.0))

    def describe(self) -> str:
        """The schedule after the warm-up, for people: "polynomial of power 2 down to 0"."""
        if self.shape == "constant":
            return "constant"
        if self.shape == "step":
            return f"step × {self.gamma:g} from step {', '.join(map(str, self.milestones))}"
        power = f" of power {self.power:g}" if self.shape == "polynomial" else ""
        return f"{self.shape}{power} down to {self.least:g}"
