"""Which rows of the micro batch are real, for layers that compute over rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

_real: ContextVar[Any] = ContextVar("hvdtrain.batch_mask", default=None)


@contextmanager
def batch_mask(real: Any) -> Iterator[None]:
    """Call the model (or trace its call) on a micro batch some of whose records only fill a step up, or are damaged.

    Args:
        real: [n], bool, or weights of which 0 means "not real"; a tensor of the graph that is being traced. None: all n
            are real, in every call of that graph.
    """
    token = _real.set(None if real is None else tf.cast(real, tf.bool))
    try:
        yield
    finally:
        _real.reset(token)


def real_rows(features: Any) -> Any:
    """The mask, bool [n], if the first axis of `features` is the batch's; None: all rows count."""
    real = _real.get()
    if real is None:
        return None
    rows, length = features.shape[0], real.shape[0]
    if rows is not None and length is not None:
        return real if rows == length else None
    everything = tf.ones(tf.shape(features)[:1], tf.bool)
    return tf.cond(tf.equal(tf.size(real), tf.size(everything)), lambda: real, lambda: everything)
