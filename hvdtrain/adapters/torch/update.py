"""One update of the weights from gradients that are already reduced: unscale, clip, step, in this order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, final

import torch

from hvdtrain.algorithms.clipping import clip_coefficient
from hvdtrain.algorithms.loss_scale import NormMean, Scaled, Unscaled
from hvdtrain.state import State


class Update(Protocol):
    """Changes the weights; learning rates are set in the optimizer's groups before."""

    norms: NormMean

    @property
    def scale(self) -> float:
        """What the loss is to be multiplied by before the backward pass."""
        ...

    def step(self) -> bool:
        """Change the weights; returns whether it did."""
        ...

    def state(self) -> State:
        """What a resumed run needs."""
        ...

    def load_state(self, state: State) -> None:
        """Put back what `state` returned."""


@final
class PlainUpdate(Unscaled):
    """Without loss scaling: nothing waits for the device.

    Args:
        optimizer: makes the step.
        parameters: those that are trained.
        max_norm: of all gradients together; infinite: they are left as they are.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor], max_norm: float = math.inf
    ) -> None:
        super().__init__()
        self._optimizer, self._parameters, self._max_norm = optimizer, parameters, max_norm

    def step(self) -> bool:
        if self._max_norm < math.inf:
            gradients = _numbers(self._parameters)
            norm = torch.nn.utils.get_total_norm(gradients)
            self.norms.add(norm)
            torch._foreach_mul_(gradients, clip_coefficient(norm, self._max_norm, torch.clamp_max))
        self._optimizer.step()
        return True


@final
class ScaledUpdate(Scaled):
    """With loss scaling: waits for the device once a step, as torch.amp.GradScaler does. Arguments as `PlainUpdate`'s.

    The norm of all gradients says at once whether one of them is not finite, and by how much to clip.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor], max_norm: float = math.inf
    ) -> None:
        super().__init__()
        self._optimizer, self._parameters, self._max_norm = optimizer, parameters, max_norm

    def step(self) -> bool:
        gradients = _numbers(self._parameters)
        norm = float(torch.nn.utils.get_total_norm(gradients)) / self.scale
        finite = math.isfinite(norm)
        if finite:
            torch._foreach_mul_(gradients, clip_coefficient(norm, self._max_norm) / self.scale)
            self._optimizer.step()
            self.norms.add(norm)
        self._loss_scale.after_step(finite)
        return finite


def _numbers(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Their gradients; of a sparse one the values of its rows, each of which it has once."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
