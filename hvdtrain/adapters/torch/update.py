"""One update of the weights from reduced gradients: unscale, clip, optimizer step, in this order; and their average."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch.optim import optimizer as torch_optimizer

from hvdtrain.adapters.torch.host_copies import to_array
from hvdtrain.adapters.torch.optimizer_slots import require_savable_slots
from hvdtrain.adapters.torch.tensor_arrays import to_tensor
from hvdtrain.algorithms.ema import WeightAverage, kept_share
from hvdtrain.algorithms.loss_scale import LossScale, ScaledUpdate, clip_coefficient


class Update(ScaledUpdate):
    """Changes the weights; learning rates are set in the optimizer's groups before.

    Args:
        optimizer: makes the step.
        parameters: those that are trained.
        max_norm: limit on the norm of all gradients together; None: there is none.
        loss_scale: None: the loss is not scaled, and no step waits for the device. With it each step waits once, as
            torch.amp.GradScaler does: the norm shows both whether a gradient is not finite, and by how much to clip.
        logs_norm: the norm is computed although nothing but `norms` needs it.
        total_norm: of all gradients together, given those of `parameters`; other ranks may have more of them.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[torch.Tensor],
        max_norm: float | None = None,
        loss_scale: LossScale | None = None,
        logs_norm: bool = False,
        total_norm: Callable[[Sequence[torch.Tensor]], torch.Tensor] = torch.nn.utils.get_total_norm,
    ) -> None:
        super().__init__(loss_scale, torch.maximum if loss_scale is None else max)
        self._optimizer, self._parameters, self._max_norm = optimizer, list(parameters), max_norm
        self._total_norm = total_norm
        self._needs_norm = logs_norm or max_norm is not None
        self._change: Callable[[], None] = self._first_change

    def include(self, parameters: Sequence[torch.Tensor]) -> None:
        """These are trained too, from now on."""
        self._parameters += parameters

    def step(self) -> bool:
        """Change the weights; returns whether it did."""
        if self._loss_scale is not None:
            return self._scaled_step(self._loss_scale)
        if self._needs_norm:
            gradients = _numbers(self._parameters)
            norm = self._total_norm(gradients)
            self.norms.add(norm)
            if self._max_norm is not None and gradients:
                torch._foreach_mul_(gradients, clip_coefficient(norm, self._max_norm, torch.clamp_max))
        self._change()
        return True

    def _first_change(self) -> None:
        """The optimizer makes its slots in its first step: only then it is known whether they can be saved."""
        self._change = partial(optimizer_step, self._optimizer)
        self._change()
        require_savable_slots(self._optimizer)

    def _scaled_step(self, loss_scale: LossScale) -> bool:
        gradients = _numbers(self._parameters)
        norm = float(self._total_norm(gradients)) / loss_scale.scale
        finite = math.isfinite(norm)
        if finite:
            clipped = clip_coefficient(norm, math.inf if self._max_norm is None else self._max_norm)
            if gradients:
                torch._foreach_mul_(gradients, clipped / loss_scale.scale)
            self._change()
            self.norms.add(norm)
        loss_scale.after_step(finite)
        return finite


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
    step = type(optimizer).step
    if getattr(step, "__code__", None) is _PROFILED and not _is_watched(optimizer):
        step.__wrapped__(optimizer)  # type: ignore[attr-defined]
    else:
        optimizer.step()


def _is_watched(optimizer: Any) -> bool:
    return bool(
        "step" in vars(optimizer)  # a method of this one object: a learning rate scheduler counts steps so
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or torch_optimizer._global_optimizer_pre_hooks
        or torch_optimizer._global_optimizer_post_hooks
        or torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
    )


class TorchWeightAverage(WeightAverage):
    """See `WeightAverage`. Averages are on the weights' devices.

    Args:
        model: with the weights from which the averages start.
        decay: see `WeightAverage`.
    """

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

    @torch.no_grad()
    def _assign(self, target: torch.Tensor, values: Any) -> None:
        target.copy_(values if isinstance(values, torch.Tensor) else to_tensor(values))

    def _to_host(self, average: torch.Tensor, into: NDArray[Any] | None) -> Any:
        return to_array(average, into)
