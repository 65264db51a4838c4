"""`hvd.load_model`: a saved model whose optimizer is distributed again."""

from collections.abc import Iterable
from inspect import signature
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

    A saved model does not say that it was trained by several ranks, so that it loads without hvdtrain. What was given
    to `DistributedOptimizer` is to be given again.

    Args:
        filepath: what `model.save` wrote.
        custom_optimizers: optimizer classes of your own that the model may have been trained with.
        custom_objects: as for `keras.models.load_model`.
        op, compression: as for `DistributedOptimizer`.
        legacy_opts: accepted, as in Horovod, and without effect.
        options: further arguments of `DistributedOptimizer`, as `backward_passes_per_step`; all others are passed on to
            `keras.models.load_model`.

    Raises:
        UsageError: as `DistributedOptimizer`.
    """
    require_init("hvd.load_model")
    known = {**{kind.__name__: kind for kind in custom_optimizers or ()}, **(custom_objects or {})}
    reducing = {name: options.pop(name) for name in signature(DistributedOptimizer).parameters if name in options}
    model = keras.models.load_model(filepath, custom_objects=known or None, **options)
    if model.optimizer is not None:
        DistributedOptimizer(model.optimizer, op=op, compression=compression, **reducing)
    return model
