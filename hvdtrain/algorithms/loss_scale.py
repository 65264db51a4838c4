"""Loss scaling for fp16: one rule for every framework, decided on the host from gradients that are already reduced.

Gradients of fp16 activations below 6e-8 vanish, so the loss is multiplied before the backward pass, and the gradients
are divided after it (Micikevicius et al. 2018, arXiv:1710.03740). A step whose gradients are not finite is left out.
All ranks see the same reduced gradients, so all take the same decision.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hvdtrain.errors import HvdtrainError
from hvdtrain.state import State

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
        """Args: whether the step's reduced gradients were finite; if not, the step must be left out.

        Raises:
            HvdtrainError: they are not finite at any scale; on all ranks alike.
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
                "A smaller scale would only turn more of them into zeros; earlier checkpoints are still good.",
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


class NormMean:
    """The mean norm of gradients over updates, added up where the norms are: only `read` waits for the device."""

    def __init__(self) -> None:
        self._sum: Any = None
        self._updates = 0

    def add(self, norm: Any) -> None:
        """Args: `norm`: of one update's reduced gradients before clipping, a number or a tensor on any device."""
        self._sum = norm if self._sum is None else self._sum + norm
        self._updates += 1

    def read(self) -> float | None:
        """Since the last reading, waiting for the device; None where no norm was known."""
        mean = float(self._sum) / self._updates if self._updates else None
        self._sum, self._updates = None, 0
        return mean


class Unscaled:
    """The half of a framework's `Update` that is about scaling, without any."""

    scale = 1.0

    def __init__(self) -> None:
        self.norms = NormMean()

    def state(self) -> State:
        return {}

    def load_state(self, state: State) -> None:
        pass


class Scaled:
    """That half with a `LossScale`."""

    def __init__(self) -> None:
        self._loss_scale = LossScale()
        self.norms = NormMean()

    @property
    def scale(self) -> float:
        return self._loss_scale.scale

    def state(self) -> State:
        return self._loss_scale.state()

    def load_state(self, state: State) -> None:
        self._loss_scale.load_state(state)
