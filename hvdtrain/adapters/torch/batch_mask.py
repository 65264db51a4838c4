"""Which rows of the micro batch are real, for layers that compute over rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_real: ContextVar[torch.Tensor | None] = ContextVar("hvdtrain.batch_mask", default=None)


@contextmanager
def batch_mask(real: torch.Tensor | None) -> Iterator[None]:
    """Run the model on a micro batch some of whose records only fill a step up, or are damaged.

    Args:
        real: [n], bool, or weights of which 0 means "not real", on the model's device; None where all n are real, which
            spares layers some work. Each rank may choose None by its own rows.
    """
    token = _real.set(None if real is None else real if real.dtype == torch.bool else real > 0)
    try:
        yield
    finally:
        _real.reset(token)


def real_rows(features: torch.Tensor) -> torch.Tensor | None:
    """The mask, bool [n], if the first axis of `features` is the batch's; None: all rows count."""
    real = _real.get()
    return real if real is not None and features.shape[0] == real.shape[0] else None
