"""By how much gradients are clipped, in no framework's terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def clip_coefficient(norm: Any, max_norm: float, smaller_of: Callable[[Any, Any], Any] = min) -> Any:
    """What all gradients are multiplied by: min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_.

    The small number keeps a norm of exactly 0 from dividing.

    Args:
        norm: of all gradients together: a number, or a float scalar of a framework.
        max_norm: what it is to be at most.
        smaller_of: the minimum of such a scalar and a number.
    """
    return smaller_of(max_norm / (norm + 1e-6), 1.0)
