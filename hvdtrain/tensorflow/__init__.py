"""`import hvdtrain.tensorflow as hvd` in the place of `import horovod.tensorflow as hvd`, with Keras 3.

    hvd.init()
    with tf.GradientTape() as tape:
        loss = ...
    tape = hvd.DistributedGradientTape(tape)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    hvd.broadcast_variables(model.variables, root_rank=0)

All names of Horovod 0.28.1 for TensorFlow 2 are here, and take Keras variables. Those of TensorFlow 1 say what to use.
"""

from typing import NoReturn

import hvdtrain.comm  # noqa: F401  before Horovod: see `horovod_wheel.start_up`
from hvdtrain.errors import missing_name
from hvdtrain.tensorflow import elastic, mpi_ops
from hvdtrain.tensorflow.functions import (
    Compression,
    allgather_object,
    broadcast_object,
    broadcast_object_fn,
    gpu_available,
)
from hvdtrain.tensorflow.mpi_ops import *  # noqa: F403  its `__all__`
from hvdtrain.tensorflow.refused import BroadcastGlobalVariablesHook, DistributedOptimizer, broadcast_global_variables
from hvdtrain.tensorflow.sync_batch_norm import SyncBatchNormalization
from hvdtrain.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from hvdtrain.tensorflow.variables import broadcast_variables

__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "elastic",
    "gpu_available",
    *mpi_ops.__all__,
]


def __getattr__(name: str) -> NoReturn:
    raise missing_name("hvdtrain.tensorflow", name, __all__)
