"""`hvd.SyncBatchNormalization`: a Keras 3 layer whose batch statistics are those of all ranks."""

from typing import Any

import keras
from horovod.tensorflow import mpi_ops

from hvdtrain.adapters.keras.sync_batch_norm import convert_sync_batch_norm, horovod_sum


@keras.saving.register_keras_serializable("hvdtrain")
class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """`keras.layers.BatchNormalization` whose mean and variance, in training, are those of all ranks' rows.

    Args: those of Keras' layer; `fused` of Keras 2 changes nothing.
    """

    def __init__(self, fused: bool = False, **named: Any) -> None:  # noqa: ARG002
        super().__init__(**named)

    def build(self, input_shape: Any) -> None:
        """Take the statistics over the ranks from now on."""
        super().build(input_shape)
        if mpi_ops.size() > 1:
            convert_sync_batch_norm(keras.Sequential([self]), horovod_sum)
