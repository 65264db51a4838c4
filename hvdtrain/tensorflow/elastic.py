"""The names of `horovod.tensorflow.elastic`: `@hvd.elastic.run`, and states that survive lost and new workers."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from horovod.common.elastic import run_fn
from horovod.common.exceptions import HorovodInternalError
from horovod.tensorflow import elastic as _horovod
from horovod.tensorflow.mpi_ops import shutdown

from hvdtrain.comm.peer_failure import is_peer_failure
from hvdtrain.tensorflow.start import join
from hvdtrain.tensorflow.variables import plain

TensorFlowKerasState = _horovod.TensorFlowKerasState


class TensorFlowState(_horovod.TensorFlowState):  # type: ignore[misc]
    """`horovod.tensorflow.elastic.TensorFlowState`, whose variables may be Keras variables."""

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any) -> None:
        super().__init__(None if variables is None else plain(list(variables)), session, **kwargs)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the training function, whose first argument is a state: `horovod.tensorflow.elastic.run`."""

    def call(state: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return func(state, *arguments, **named)
        except tf.errors.OpError as error:  # as which TensorFlow raises the end of a collective
            if is_peer_failure(error):
                raise HorovodInternalError(error) from error
            raise

    decorated: Callable[..., Any] = run_fn(call, _join_next_world)
    return decorated


def _join_next_world() -> None:
    shutdown()
    join()
