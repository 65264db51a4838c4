"""Loss scaling for fp16, and gradient norms: one rule for every framework, on gradients that are reduced.

Gradients of fp16 activations below 6e-8 vanish, so the loss is multiplied before the backward pass, and the gradients
are divided after it (Micikevicius et al. 2018, arXiv:1710.03740). A step whose gradients are not finite is skipped. The
host decides that from the reduced gradients, so that all ranks take the same decision.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from hvdtrain.algorithms.clipping import Clipping
from hvdtrain.algorithms.interval_sums import NormTotals
from hvdtrain.errors import HvdtrainError
from hvdtrain.named_arrays import State

# The defaults of torch.amp.GradScaler and of Keras' LossScaleOptimizer.
_FIRST = 2.0**16
_INTERVAL = 2000
_SMALLEST = 2.0**-14


class LossScale:
    """Halves when gradients overflow, doubles after `interval` steps in which they did not."""

    def __init__(self, first: float = _FIRST, interval: int = _INTERVAL) -> None:
        self.scale = first
        self._interval = interval
        self._good_steps = 0

    def after_step(self, finite: bool) -> None:
        """Args: whether the step's reduced gradients were finite; if not, the step must be skipped.

        Raises `HvdtrainError`: they are not finite at any scale; on all ranks alike.
        """
        if finite:
            self._good_steps += 1
            if self._good_steps == self._interval:
                self.scale, self._good_steps = self.scale * 2, 0
            return
        self.scale, self._good_steps = self.scale / 2, 0
        if self.scale < _SMALLEST:
            raise HvdtrainError(
                f"The gradients are not finite at a loss scale of {2 * self.scale:g} either.",
                "A smaller scale would only turn more of them into zeros; checkpoints of before, if any, are good.",
                "look for bad values in the data, lower --lr, or use --precision bf16.",
            ).on_all_ranks()

    def state(self) -> State:
        """What a resumed run needs: named float64 scalars."""
        return {"scaler/scale": np.array(self.scale), "scaler/good_steps": np.array(float(self._good_steps))}

    def load_state(self, state: State) -> None:
        """Put back what `state` returned; a state without it leaves the scale as it is."""
        if "scaler/scale" in state:
            self.scale = float(state["scaler/scale"])
            self._good_steps = int(state["scaler/good_steps"])


class GradientNorms:
    """Sum and peak of the gradients' norms over updates, on the norms' device: only `read` waits for it."""

    def __init__(self, larger_of: Callable[[Any, Any], Any] = max) -> None:
        self._larger_of = larger_of
        self.begin()

    def begin(self, before: NormTotals | None = None) -> None:
        """Forget all but those of earlier updates, `before`, which the next reading is to be about, too."""
        self._before = before
        self._sum: Any = None if before is None else before.total
        self._peak: Any = None
        self._updates = 0

    def add(self, norm: Any) -> None:
        """Args: `norm`: of one update's reduced gradients before clipping, a number or a tensor on any device."""
        self._sum = norm if self._sum is None else self._sum + norm
        self._peak = norm if self._peak is None else self._larger_of(self._peak, norm)
        self._updates += 1

    def read(self) -> NormTotals | None:
        """Those since the last reading, waiting for the device; None where no norm was known."""
        before, updates = self._before, self._updates
        read = NormTotals(float(self._sum), float(self._peak), updates) if updates else None
        self.begin()
        if read is None or before is None:
            return read or before
        return NormTotals(read.total, float(np.maximum(before.peak, read.peak)), before.updates + updates)


class ScaledUpdate:
    """The half of a framework's `Update` that knows no framework: the loss scale, if there is one, and the norms.

    Args: `loss_scale`: None: the loss is not scaled, and no step waits for the device. With it each step waits once, as
    torch.amp.GradScaler does: the norm shows both whether a gradient is not finite, and by how much to clip.
    """

    def __init__(self, clipping: Clipping, loss_scale: LossScale | None, larger_of: Callable[[Any, Any], Any]) -> None:
        self._clipping, self._loss_scale = clipping, loss_scale
        self._needs_norm = clipping.needs_norm or loss_scale is not None
        self.norms = GradientNorms(larger_of)

    def continue_norms(self, before: NormTotals | None) -> None:
        """The next reading of norms is about these, too, if norms are still asked for."""
        self.norms.begin(before if self._needs_norm else None)

    @property
    def scale(self) -> float:
        """What the loss must be multiplied by before the backward pass, in the step that begins now."""
        return 1.0 if self._loss_scale is None else self._loss_scale.scale

    def state(self) -> State:
        return {} if self._loss_scale is None else self._loss_scale.state()

    def load_state(self, state: State) -> None:
        if self._loss_scale is not None:
            self._loss_scale.load_state(state)
