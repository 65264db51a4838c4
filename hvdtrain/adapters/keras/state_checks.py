"""What of a Keras model or optimizer cannot be trained by several workers, or saved: refused by name at the start."""

from collections.abc import Iterator
from typing import Any, Final

import keras
import tensorflow as tf

from hvdtrain.errors import UsageError

_TRAINED: Final = ("float16", "float32", "float64")
"""Numbers that every way to sum gradients over workers can add."""

_HINTS: Final = {
    "bfloat16": "build the layer in float32, and train with --precision bf16; what is not trained may stay bfloat16."
}


def require_savable_model(model: keras.Model) -> None:
    """Raise `UsageError` for variables that no sum over workers takes, or no checkpoint gives back."""
    for variable in model.trainable_variables:
        if variable.dtype not in _TRAINED:
            raise UsageError(
                f"The trainable variable {variable.path!r} is {variable.dtype}.",
                "Gradients of that type cannot be summed over workers; those of float16, float32 and float64 can.",
                _HINTS.get(variable.dtype, "keep real numbers, such as real and imaginary parts."),
            )
    for variable in model.variables:
        if variable.dtype == "string":
            raise UsageError(
                f"The variable {variable.path!r} holds texts.",
                "A checkpoint holds numbers.",
                "keep the texts' numbers, or look them up where records are decoded.",
            )
    for layer in model._flatten_layers():
        _require_known(f"The layer {layer.name!r}", layer)


def require_savable_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    """Raise `UsageError` if a built optimizer keeps variables of which Keras does not know."""
    _require_known(f"The optimizer {type(optimizer).__name__}", optimizer)


def _require_known(what: str, keeper: Any) -> None:
    """tf.Variable is meant: of its own variables Keras knows wherever they are."""
    for name, value in vars(keeper).items():
        if name.startswith("_") and not isinstance(value, tf.Variable):
            continue  # Keras' own lists of what it knows
        if any(isinstance(part, tf.Variable) for part in _parts(value)):
            raise UsageError(
                f"{what} keeps a tf.Variable in {name!r}.",
                "Keras does not know of it, so it is neither made equal on all workers nor saved in checkpoints.",
                "make a keras.Variable of it, or call add_weight() (in an optimizer add_variable()).",
            )


def _parts(value: Any, around: tuple[int, ...] = ()) -> Iterator[Any]:
    """What is in a container, or in containers in it, each of which may hold itself; or the value."""
    if not isinstance(value, dict | list | tuple | set | frozenset):
        yield value
    elif id(value) not in around:
        for part in value.values() if isinstance(value, dict) else value:
            yield from _parts(part, (*around, id(value)))
