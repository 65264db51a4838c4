"""One update of the weights from reduced gradients: unscale, clip, optimizer step, in this order; and their average."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch.optim import optimizer as torch_optimizer

from hvdtrain.adapters.torch.optimizer_state import require_savable_slots
from hvdtrain.adapters.torch.tensor_arrays import assign, to_array
from hvdtrain.algorithms.clipping import NO_CLIPPING, Clipping
from hvdtrain.algorithms.ema import WeightAverage, kept_share
from hvdtrain.algorithms.loss_scale import LossScale, ScaledUpdate


class Update(ScaledUpdate):
    """Changes the weights; learning rates are set in the optimizer's groups before.

    Args: `total_norm`: of all gradients together, given those of `parameters`; other ranks may have more of them.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[torch.Tensor],
        clipping: Clipping = NO_CLIPPING,
        loss_scale: LossScale | None = None,
        total_norm: Callable[[Sequence[torch.Tensor]], torch.Tensor] = torch.nn.utils.get_total_norm,
    ) -> None:
        super().__init__(clipping, loss_scale, torch.maximum if loss_scale is None else max)
        self._optimizer, self._parameters, self._total_norm = optimizer, list(parameters), total_norm
        self._change: Callable[[], None] = self._first_change

    def include(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters += parameters

    def step(self) -> bool:
        """Change the weights; returns whether it did."""
        if not self._needs_norm:
            self._change()
            return True
        gradients = _numbers(self._parameters)
        norm: Any = self._total_norm(gradients)
        if self._loss_scale is not None:
            norm = float(norm) / self._loss_scale.scale
        finite = self._loss_scale is None or math.isfinite(norm)
        if finite:
            self.norms.add(norm)
            self._clipped(gradients, norm)
            self._change()
        if self._loss_scale is not None:
            self._loss_scale.after_step(finite)
        return finite

    def _clipped(self, gradients: list[torch.Tensor], norm: Any) -> None:
        """Undo the loss scale, and limit what is left, in place."""
        factor = self._clipping.factor(norm, torch.clamp_max if torch.is_tensor(norm) else min) / self.scale
        if gradients and (self._loss_scale is not None or self._clipping.max_norm is not None):
            torch._foreach_mul_(gradients, factor)

    def _first_change(self) -> None:
        """The optimizer makes its slots in its first step: only then it is known whether they can be saved."""
        self._change = partial(optimizer_step, self._optimizer)
        self._change()
        require_savable_slots(self._optimizer)


def _numbers(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Their gradients; for a sparse one the values of its rows, which are unique."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]


_PROFILED: Final = torch.optim.Optimizer.profile_hook_step(lambda _: None).__code__
"""Of the function that torch puts around the `step` of each class of optimizers, to tell a profiler of it."""


def optimizer_step(optimizer: torch.optim.Optimizer) -> None:
    """`optimizer.step()`, without that function where no profiler runs and nobody has asked to be told of steps.

    It would take 13 % of a step of a small MLP by torch's SGD.
    """
    if "step" in vars(optimizer):  # a method of this one object: a learning rate scheduler counts steps so
        optimizer.step()
    else:
        untold_step(optimizer, type(optimizer).step)(optimizer)


def untold_step(optimizer: torch.optim.Optimizer, step: Callable[..., Any]) -> Callable[..., Any]:
    """`step`, of a class of optimizers, without that function under the same conditions."""
    may_be_untold = getattr(step, "__code__", None) is _PROFILED and not is_watched(optimizer)
    return step.__wrapped__ if may_be_untold else step  # type: ignore[attr-defined]


def may_draw(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step may use random numbers (Langevin dynamics, noise for privacy): torch's optimizers and ours do
    not."""
    known = type(optimizer).__module__.startswith(("torch.optim.", "hvdtrain.adapters."))
    return not known or "step" in vars(optimizer) or is_watched(optimizer)


def is_watched(optimizer: Any) -> bool:
    """Whether torch's profiler runs, or somebody has asked to be told of its steps. An `ExecutionTraceObserver` without
    a profiler is not seen."""
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or torch_optimizer._global_optimizer_pre_hooks
        or torch_optimizer._global_optimizer_post_hooks
        or torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
    )


class TorchWeightAverage(WeightAverage):
    """See `WeightAverage`. Averages are on the weights' devices."""

    _assign, _to_host = staticmethod(assign), staticmethod(to_array)

    def __init__(self, model: torch.nn.Module, decay: float) -> None:
        parameters = dict(model.named_parameters())
        super().__init__(decay, {}, {}, {name: p for name, p in parameters.items() if not p.requires_grad})
        self.include({name: p for name, p in parameters.items() if p.requires_grad})

    @torch.no_grad()
    def update(self, step: int) -> None:
        averages, weights = list(self._averages.values()), list(self._weights.values())
        torch._foreach_lerp_(averages, weights, 1 - kept_share(self._decay, step))

    def _copied(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.detach().clone()
