"""Keras 3 variables as TensorFlow's own, since Horovod's functions know only those."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import keras
import tensorflow as tf

F = TypeVar("F", bound=Callable[..., Any])


def unwrapped(value: Any) -> Any:
    """The `tf.Variable` in a Keras variable; anything else as it is."""
    return value.value if isinstance(value, keras.Variable) else value


def key_of(source: Any) -> Any:
    """What is equal for a Keras variable and its `tf.Variable`, and can be kept in a set."""
    return unwrapped(source).ref()


def with_keras_variables(function: F) -> F:
    """`function`, whose arguments and lists of arguments may be Keras variables, too."""

    @functools.wraps(function)
    def unwrapping(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tf.nest.map_structure(unwrapped, (args, kwargs))
        return function(*args, **kwargs)

    return unwrapping  # type: ignore[return-value]
