"""`hvd.load_model`: a saved model whose optimizer is distributed again."""

from collections.abc import Iterable
from typing import Any

import keras

from hvdtrain.tensorflow.optimizer import DistributedOptimizer
from hvdtrain.tensorflow.start import require_init


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = None,
    legacy_opts: bool = False,  # noqa: ARG001 (Horovod's argument; Keras 3 has no legacy optimizers)
    *,
    op: Any = "average",
    **options: Any,
) -> Any:
    """`keras.models.load_model`, with the loaded optimizer and its state made distributed again.

    A saved model does not say that it was trained by several ranks, so that it loads without hvdtrain.

    Args:
        filepath: what `model.save` wrote.
        custom_optimizers: optimizer classes of your own that the model may have been trained with.
        custom_objects: as for `keras.models.load_model`.
        op, compression: as for `DistributedOptimizer`.
        legacy_opts: accepted, as in Horovod, and without effect.
        options: passed on to `keras.models.load_model`.
    """
    require_init("hvd.load_model")
    known = {**{kind.__name__: kind for kind in custom_optimizers or ()}, **(custom_objects or {})}
    model = keras.models.load_model(filepath, custom_objects=known or None, **options)
    if model.optimizer is not None:
        DistributedOptimizer(model.optimizer, op, compression)
    return model
