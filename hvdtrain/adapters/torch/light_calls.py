"""A backward pass and an optimizer's step without what torch does around them for others, a large part of a small step.

`Tensor.backward` makes the first gradient by an operation of its own, or imports SymPy to compare the shape of one that
it is given, which takes a second. `Optimizer.step` tells a profiler of itself, whether there is one or not.
"""

from typing import Any, Final

import torch
from torch.autograd.graph import _engine_run_backward
from torch.optim import optimizer as torch_optimizer

_PROFILED: Final = torch.optim.Optimizer.profile_hook_step(lambda _: None).__code__
"""Of the function that torch puts around the `step` of each class of optimizers."""


def backward(losses: torch.Tensor, shares: torch.Tensor) -> None:
    """Add the gradients of Σ `shares`ᵢ · `losses`ᵢ to those of the parameters.

    Args:
        losses: floating[n], with a graph.
        shares: of the same shape and type, without one.
    """
    _engine_run_backward((losses,), (shares,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def optimizer_step(optimizer: torch.optim.Optimizer) -> None:
    """`optimizer.step()`, which is called as it is where a profiler runs or anybody has asked to be told of steps."""
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
