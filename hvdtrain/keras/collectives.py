"""What callbacks must agree on: `hvdtrain.comm` on an initialized Horovod, and a broadcast of Keras variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as horovod
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hvdtrain.comm.horovod import HorovodCommunicator
from hvdtrain.comm.messages import gather_bytes, gather_json
from hvdtrain.comm.tensorflow_binding import TensorFlowBinding
from hvdtrain.topology import Topology


def allreduce_sum(values: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """The element-wise sum over ranks of a float64 vector, the same bits on every rank."""
    return _communicator().allreduce(values, name)


def allgather_bytes(value: bytes, name: str) -> list[bytes]:
    """Every rank's bytes, of any length each, in order of rank."""
    return gather_bytes(_communicator(), value, name)


def allgather_json(value: Any, name: str) -> list[Any]:
    """Every rank's JSON value, in order of rank."""
    return gather_json(_communicator(), value, name)


def _communicator() -> HorovodCommunicator:
    here = Topology(horovod.rank(), horovod.size(), horovod.local_rank(), horovod.local_size())
    return HorovodCommunicator(TensorFlowBinding(), here)


def broadcast_variables(variables: Sequence[Any], root_rank: int, name: str) -> None:
    """Give every rank root's values of these Keras variables, which all ranks list in the same order."""

    def broadcast_all() -> None:
        for place, variable in enumerate(variables):
            _broadcast_one(variable.value, root_rank, f"{name}_{place}")

    # Called once: the plain call would warn, after a few fits, that it is traced each time.
    tf.function(broadcast_all, autograph=False).get_concrete_function()()


def _broadcast_one(variable: tf.Variable, root_rank: int, name: str) -> None:
    # Horovod has no bfloat16 and no unsigned 32 bit; both fit into these without loss.
    wire = {tf.bfloat16: tf.float32, tf.uint32: tf.int64}.get(variable.dtype, variable.dtype)
    received = horovod.broadcast(tf.cast(variable, wire), root_rank, name=name, ignore_name_scope=True)
    variable.assign(tf.cast(received, variable.dtype))
