"""`hvd.SyncBatchNormalization`: a Keras 3 layer with the statistics of all ranks' samples."""

from typing import Any

import horovod.tensorflow as horovod
import keras

from hvdtrain.adapters.keras.numbered_calls import NumberedCalls
from hvdtrain.adapters.keras.sync_batch_norm import horovod_sum, synchronized_moments
from hvdtrain.errors import UsageError
from hvdtrain.tensorflow.gradient_reduction import may_have_peers

_calls = NumberedCalls()


@keras.saving.register_keras_serializable(package="hvdtrain")
class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """`keras.layers.BatchNormalization` over the samples of all ranks while it trains; its arguments are that layer's.

    Args:
        fused: Horovod's argument; only False, as there.

    Raises:
        UsageError: for `fused=True`.
    """

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused or fused is None:
            raise UsageError(
                f"SyncBatchNormalization was given fused={fused}.",
                "A fused operation computes the statistics of one rank only.",
                "leave fused out.",
            )
        super().__init__(**kwargs)

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        # One counter for all such layers: the order of calls in a graph is the same on every rank.
        peers = horovod.is_initialized() and may_have_peers(horovod.global_process_set)
        total = horovod_sum if peers else None
        mean, variance = synchronized_moments(self, 0, _calls, total, inputs, mask)
        return mean, variance
