"""Make your own Keras 3 `model.fit` distributed, on Keras' TensorFlow backend.

    import hvdtrain.keras as hvd

    hvd.init()
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), ...)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()])

The names are those of `horovod.keras`, whose optimizer reduces nothing under Keras 3 and says nothing about it.
Each rank gives `fit` its own part of the data, with the same number of batches on every rank.
"""

from horovod.tensorflow import is_initialized, local_rank, local_size, rank, shutdown, size

from hvdtrain.keras import callbacks
from hvdtrain.keras.optimizer import DistributedOptimizer, load_model
from hvdtrain.keras.runtime import assert_in_sync, init

__all__ = [
    "DistributedOptimizer",
    "assert_in_sync",
    "callbacks",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]
