"""How a task's measure() calls a Keras model: each part gets `training`, and our errors keep their type."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

# Keras has no public way to say "training" to layers that are not called through one outermost layer.
from keras.src.backend.common import global_state
from keras.src.layers.layer import CallContext
from keras.src.random.seed_generator import global_seed_generator

from hvdtrain.errors import HvdtrainError
from hvdtrain.task.task import check_measures

_CONTEXT = "current_call_ctx"


@contextmanager
def called_for(model: Any, training: bool) -> Iterator[Any]:
    """Within, layers that are called without `training` take it from here, parts of `model` called by themselves too.

    Yields what measure() is to call instead of `model`.
    """
    before = global_state.get_global_attribute(_CONTEXT)
    context = CallContext(entry_layer=None)  # no layer ends it
    context.training = training
    global_state.set_global_attribute(_CONTEXT, context)
    model._clear_losses()  # what the outermost layer of a call does
    try:
        yield _Mode(model, training)
    finally:
        global_state.set_global_attribute(_CONTEXT, before)


def converted(measure: Callable[..., Any]) -> Callable[..., Any]:
    """A task's function with Python's `if` and `while` on tensors made operations of the graph, as by `tf.function`.

    It is to be made outside of graphs: within one that has no AutoGraph, functions are not converted either.
    """
    autograph = tf.__internal__.autograph
    with_control_flow: Callable[..., Any] = autograph.tf_convert(measure, autograph.control_status_ctx())
    return with_control_flow


def own_seed_state() -> Any:
    """The variable, uint32 of shape [2], from which Keras' random operations without a seed generator draw."""
    return global_seed_generator().state


class _Mode:
    """The model with Keras' `training` option set, whatever option its parts are given.

    What it returns is float32 also where the model computes in less, so that losses are exact.
    """

    def __init__(self, model: Any, training: bool) -> None:
        self._model = model
        self._training = training

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        outputs = self._model(*inputs, **{"training": self._training, **options})
        return tf.nest.map_structure(widened, outputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def widened(output: Any) -> Any:
    """A tensor of half precision as float32; anything else as it is."""
    low = getattr(output, "dtype", None) in (tf.float16, tf.bfloat16)
    return tf.cast(output, tf.float32) if low else output


def checked_measures(measures: Any, samples: int) -> dict[str, Any]:
    """What measure() has returned for `samples` samples. Shapes that a graph cannot know are checked when it runs.

    Raises `UsageError`: see `check_measures`.
    """
    if isinstance(measures, dict):
        unknown = {n: v for n, v in measures.items() if tf.is_tensor(v) and not v.shape.is_fully_defined()}
        known_later = {n: v for n, v in unknown.items() if v.shape.is_compatible_with([samples])}
        measures = {**measures, **{n: tf.ensure_shape(v, [samples]) for n, v in known_later.items()}}
    check_measures(measures, samples, tf.is_tensor)
    checked: dict[str, Any] = measures
    return checked


@contextmanager
def task_errors() -> Iterator[None]:
    """Raise our errors as they were: AutoGraph turns all exceptions that it does not know into errors of its own."""
    try:
        yield
    except Exception as error:
        original = error.__context__
        if isinstance(original, HvdtrainError):
            raise original from None
        raise
