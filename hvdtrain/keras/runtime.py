"""Start Horovod for a Keras script: backend, stall limits, threads, GPU, and a check against the launcher."""

import os

import horovod.tensorflow as horovod
import keras

from hvdtrain.adapters.keras.device import bind_device_and_threads
from hvdtrain.comm.horovod import bound_stalls, confirmed, exchange_at_once, yield_when_idle
from hvdtrain.comm.interface import HorovodCommunicator
from hvdtrain.comm.tensorflow_binding import TensorFlowBinding
from hvdtrain.errors import UsageError
from hvdtrain.topology import Topology, detect_topology

STALL_TIMEOUT = 300.0  # seconds; HOROVOD_STALL_SHUTDOWN_TIME_SECONDS overrides it


def init() -> None:
    """Join the job. Call it first, before TensorFlow computes anything.

    Starts Horovod with a finite stall limit (60 s to the warning, 300 s to the end, unless the environment says
    otherwise), shares the machine's cores out among its workers unless threads are set, and pins the GPU of this
    local rank.

    Raises:
        UsageError: if Keras runs on another backend than TensorFlow, if a launcher announces another world
            than Horovod finds, or if this machine has fewer GPUs than workers.
    """
    _require_tensorflow_backend()
    topology = detect_topology(os.environ)
    bound_stalls(os.environ, STALL_TIMEOUT)
    yield_when_idle(os.environ)
    exchange_at_once(os.environ)
    horovod.init()
    confirmed(topology, horovod)
    bind_device_and_threads(horovod.local_rank(), horovod.local_size())


def require_init(wanted: str) -> None:
    """Raise a `UsageError` if `init` has not been called; `wanted` is what the user called instead."""
    if not horovod.is_initialized():
        raise UsageError(
            f"{wanted} was used before hvd.init().",
            "Without it no rank knows of the others.",
            "call hvd.init() as the first statement after the imports.",
        )


def communicator() -> HorovodCommunicator:
    """What callbacks agree through: all ranks of the Horovod that `init` started."""
    here = Topology(horovod.rank(), horovod.size(), horovod.local_rank(), horovod.local_size())
    return HorovodCommunicator(TensorFlowBinding(), here)


def _require_tensorflow_backend() -> None:
    backend = keras.config.backend()
    if backend != "tensorflow":
        raise UsageError(
            f"Keras runs on the {backend} backend.",
            "hvdtrain.keras reduces TensorFlow's gradients.",
            "set KERAS_BACKEND=tensorflow before keras is imported, or use hvdtrain's own training for PyTorch.",
        )
