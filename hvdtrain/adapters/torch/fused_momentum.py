"""torch's fused SGD where some parameters have their first gradient later than others: by itself it raises TypeError.

The kernel takes either no momentum at all or that of each parameter. Without dampening a buffer of zeros is the same as
none: the first update makes it momentum · 0 + gradient.
"""

from typing import Any

import torch


def complete_fused_momentum(optimizer: Any) -> None:
    """Have `optimizer`, if it is such an SGD, begin the momentum of a parameter with zeros where others have theirs."""
    groups = getattr(optimizer, "param_groups", ())
    if type(optimizer) is torch.optim.SGD and any(map(_needs_all, groups)):
        optimizer.register_step_pre_hook(_begin_missing)


def _needs_all(group: dict[str, Any]) -> bool:
    return bool(group["fused"] and group["momentum"] and not group["dampening"])


def _begin_missing(optimizer: torch.optim.Optimizer, *_: object) -> None:
    state, count = optimizer.state, sum(len(group["params"]) for group in optimizer.param_groups)
    if len(state) in (0, count):  # before the first step, and in nearly all others
        return
    for group in filter(_needs_all, optimizer.param_groups):
        for parameter in group["params"]:
            if parameter.grad is not None and state[parameter].get("momentum_buffer") is None:
                state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
