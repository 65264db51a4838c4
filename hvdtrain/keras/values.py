"""Collectives on values outside of training steps, with the arguments of `horovod.keras`: they return tensors."""

from typing import Any, NoReturn

import tensorflow as tf

from hvdtrain.errors import UsageError
from hvdtrain.tensorflow import Average, Compression, Sum, collectives
from hvdtrain.tensorflow.keras_variables import unwrapped
from hvdtrain.tensorflow.start import require_init


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Any = None,
    compression: Any = Compression.none,
) -> Any:
    """The values of all ranks reduced: a tensor of the value's shape. Collective.

    Args:
        value: what numpy can make an array of, or a variable; of one shape and dtype on all ranks.
        name: of the collective.
        average: Horovod's older argument: False is `op=hvd.Sum`, True is `op=hvd.Average`, which is the default.
        prescale_factor, postscale_factor: by which values are multiplied before and after.
    """
    require_init("hvd.allreduce")
    if op is not None and average is not None:
        raise UsageError(
            f"hvd.allreduce was given op and average={average}.", "Both say how to reduce.", "leave average out."
        )
    chosen = op if op is not None else Sum if average is False else Average
    return collectives.allreduce(
        _tensor(value),
        op=chosen,
        compression=compression,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """The values of all ranks, joined along their first axis, whose length may differ. Collective."""
    require_init("hvd.allgather")
    return collectives.allgather(_tensor(value), name=name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Root's value on every rank. Collective."""
    require_init("hvd.broadcast")
    return collectives.broadcast(_tensor(value), root_rank, name=name)


def reducescatter(value: Any, name: str | None = None, op: Any = Average) -> Any:
    """The values of all ranks reduced, of which each rank gets its part along the first axis. Collective."""
    require_init("hvd.reducescatter")
    return collectives.reducescatter(_tensor(value), op=op, name=name)


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """Refused: Keras 3 has no collection of global variables."""
    raise UsageError(
        f"hvd.broadcast_global_variables({root_rank}) was called.",
        "Keras 3 has no collection of global variables that it could send.",
        f"give model.fit callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback({root_rank})].",
    )


def _tensor(value: Any) -> Any:
    """A tensor of the value: TensorFlow makes float32 of Python's floats, as `horovod.keras` does."""
    return tf.convert_to_tensor(unwrapped(value))
