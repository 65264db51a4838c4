"""Root's variables on every rank, by names that do not depend on Keras' automatic numbers."""

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import horovod.tensorflow as horovod
import tensorflow as tf

from hvdtrain.errors import UsageError
from hvdtrain.tensorflow.keras_variables import unwrapped


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: Any = horovod.global_process_set,
    inplace: bool = False,
) -> Any:
    """Give every rank of the process set root's values. Collective.

    Args:
        variables: Keras or TensorFlow variables, on every rank in the same order.
        root_rank: whose values all get.
        inplace: without a second copy of each value, by Horovod's own operation.

    Returns: in a graph the operation that does it, otherwise None.
    """
    plain = [unwrapped(variable) for variable in variables]
    if inplace:
        return horovod.broadcast_variables(plain, root_rank, process_set, inplace=True)
    if not tf.executing_eagerly():
        return _assigned(plain, root_rank, process_set)

    def assign() -> None:
        _assigned(plain, root_rank, process_set)

    if plain:
        tf.function(assign, autograph=False)()  # in a graph, where Horovod's operations have names
    return None


def _assigned(variables: Sequence[Any], root_rank: int, process_set: Any) -> Any:
    assignments = []
    for place, variable in enumerate(variables):
        described = f"{variable.dtype.name} {tuple(variable.shape)}"
        name = f"hvdtrain_broadcast_{place}_{zlib.crc32(described.encode()):08x}"
        assignments.append(variable.assign(_broadcast(tf.convert_to_tensor(variable), root_rank, name, process_set)))
    return tf.group(*[getattr(assigned, "op", assigned) for assigned in assignments])


def _broadcast(value: Any, root_rank: int, name: str, process_set: Any) -> Any:
    # Horovod 0.28.1 has no bfloat16.
    sent = tf.bitcast(value, tf.float16) if value.dtype == tf.bfloat16 else value
    received = horovod.broadcast(sent, root_rank, name=name, ignore_name_scope=True, process_set=process_set)
    return tf.bitcast(received, tf.bfloat16) if value.dtype == tf.bfloat16 else received


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """Refused: TensorFlow 2 has no collection of global variables."""
    raise UsageError(
        f"hvd.broadcast_global_variables({root_rank}) was called.",
        "TensorFlow 2 has no collection of global variables that it could send.",
        f"call hvd.broadcast_variables(model.weights, root_rank={root_rank}), then the same with "
        "optimizer.variables; with model.fit use hvd.callbacks.BroadcastGlobalVariablesCallback of hvdtrain.keras.",
    )


class BroadcastGlobalVariablesHook:
    """Refused: sessions and their hooks are TensorFlow 1's."""

    def __init__(self, root_rank: int = 0, device: str = "") -> None:  # noqa: ARG002 (Horovod's arguments)
        raise UsageError(
            "hvd.BroadcastGlobalVariablesHook is a hook of TensorFlow 1's sessions.",
            "TensorFlow 2 with Keras 3 has no sessions that would call it.",
            f"call hvd.broadcast_variables(model.weights, root_rank={root_rank}) after the first step.",
        )


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: Any = None
) -> Any:
    """A function that gives every rank root's object, as `hvd.broadcast_object` does; made once and called often.

    Raises:
        UsageError: with a session, which TensorFlow 2 does not have.
    """
    if session is not None:
        raise UsageError(
            "hvd.broadcast_object_fn was given a session.",
            "TensorFlow 2 has no sessions.",
            "leave session out.",
        )
    where = horovod.global_process_set if process_set is None else process_set

    def broadcast(obj: Any) -> Any:
        return horovod.broadcast_object(obj, root_rank, name=name or "broadcast_object_fn", process_set=where)

    return broadcast
