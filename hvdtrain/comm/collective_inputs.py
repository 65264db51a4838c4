"""What a collective of a user's loop is called with: tensors, and with rows where they are joined or divided."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from hvdtrain.errors import UsageError

_BY_ROWS: Final = ("allgather", "alltoall", "reducescatter")


class WrongTensorError(UsageError, ValueError):
    """A collective was given something else than a tensor, or a tensor without dimensions where it needs rows."""


class Tensors(NamedTuple):
    """How to tell a framework's tensors, and to make one, as a hint says it."""

    are: Callable[[Any], bool]
    made: str
    with_one_row: str


def require_tensors(collective: str, values: Any, tensors: Tensors) -> None:
    """Raises `WrongTensorError`. Horovod ends the process where it divides a tensor that has no rows.

    Args:
        collective: its name, as `alltoall_async`.
        values: a list or tuple is looked at; a generator would be used up by that.
    """
    if not isinstance(values, list | tuple):
        return
    needs_rows = any(name in collective for name in _BY_ROWS)
    for value in values:
        if not tensors.are(value):
            raise WrongTensorError(
                f"hvd.{collective} was given a value of the type {type(value).__name__}.",
                "It sends tensors.",
                f"give {tensors.made}; hvd.broadcast_object and hvd.allgather_object send other objects.",
            )
        if needs_rows and _dimensions(value) == 0:
            raise WrongTensorError(
                f"hvd.{collective} was given a tensor without dimensions.",
                "It joins or divides tensors along the first one.",
                f"give {tensors.with_one_row}.",
            )


def _dimensions(tensor: Any) -> int | None:
    """None: they are not known while TensorFlow traces a function."""
    shape = getattr(tensor, "shape", None)
    number: int | None = np.ndim(tensor) if shape is None else shape.rank if hasattr(shape, "rank") else len(shape)
    return number
