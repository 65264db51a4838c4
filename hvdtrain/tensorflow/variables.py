"""Keras 3 variables where Horovod knows TensorFlow's only."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import horovod.tensorflow as horovod
import keras
from horovod.tensorflow import mpi_ops

P = ParamSpec("P")
R = TypeVar("R")


def plain(value: Any) -> Any:
    """TensorFlow's variable of a Keras variable, also in lists and tuples; anything else as it is."""
    if isinstance(value, keras.Variable):
        return value.value
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    return value


def takes_keras_variables(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, whose arguments may be, or may contain, Keras variables."""

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        given: Any = {name: plain(value) for name, value in named.items()}
        return function(*map(plain, arguments), **given)

    return call


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: Any = mpi_ops.global_process_set,
    inplace: bool = False,  # noqa: ARG001  Horovod's
) -> Any:
    """Give all ranks the root's values of TensorFlow or Keras variables. Collective.

    Args: `inplace`: Horovod's; nothing changes by it.
    """
    return horovod.broadcast_variables([plain(each) for each in variables], root_rank, process_set=process_set)
