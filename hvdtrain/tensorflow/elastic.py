"""`hvd.elastic`: a training function that goes on when workers come or go, with Keras 3 models and variables."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import horovod.tensorflow as horovod
import tensorflow as tf
from horovod.common.elastic import run_fn
from horovod.common.exceptions import HorovodInternalError

from hvdtrain.adapters.elastic_values import CopiedValues
from hvdtrain.comm.peer_failure import is_peer_failure
from hvdtrain.errors import PeerError, UsageError, missing_name
from hvdtrain.models.keras_normalization import renew_normalization
from hvdtrain.tensorflow.broadcasting import broadcast_variables
from hvdtrain.tensorflow.keras_variables import unwrapped
from hvdtrain.tensorflow.start import join_world
from hvdtrain.tensorflow.summed_passes import all_passes

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the training function, whose first argument is a state: `horovod.tensorflow.elastic.run`.

    After a lost worker the state goes back to its last commit; after a new one it is sent to all. Then `func` begins
    again in the new world.
    """

    def call(state: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return func(state, *arguments, **named)
        except PeerError as error:
            raise HorovodInternalError(error) from error
        except tf.errors.OpError as error:  # as which TensorFlow raises that a collective has ended
            if is_peer_failure(error):
                raise HorovodInternalError(error) from error
            raise

    decorated: Callable[..., Any] = run_fn(call, _join_next_world)
    return decorated


def _join_next_world() -> None:
    horovod.shutdown()
    join_world()


class TensorFlowState(CopiedValues):
    """Variables, and values as attributes, that are equal on all ranks after each change of workers.

    Args:
        variables: Keras or TensorFlow variables. Build an optimizer before its variables are listed: moments that it
            makes later are not among them, and workers that join would have others. `TensorFlowKerasState` does it.
        session: TensorFlow 1's; refused.
        kwargs: other values to keep, which become attributes, such as `batch=0`.

    Raises:
        UsageError: without variables, since TensorFlow 2 has no list of all, and with a session.
    """

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        if variables is None or session is not None:
            raise UsageError(
                "hvd.elastic.TensorFlowState was given " + ("a session." if variables is not None else "no variables."),
                "TensorFlow 2 has neither sessions nor a list of all variables.",
                "call optimizer.build(model.trainable_variables), which makes its moments, and write "
                "TensorFlowState(variables=[*model.weights, *optimizer.variables]).",
            )
        self._tracked = [unwrapped(variable) for variable in variables]
        self._keep()
        super().__init__(bcast_object=horovod.broadcast_object, get_rank=horovod.rank, **kwargs)

    @property
    def variables(self) -> list[Any]:
        """What is kept, as `tf.Variable`s."""
        return self._tracked

    @property
    def _common(self) -> list[Any]:
        """Which of them ranks have in common."""
        return self.variables

    def save(self) -> None:
        """Keep a copy of the variables and values in memory: `restore` goes back to it."""
        self._keep()
        super().save()

    def restore(self) -> None:
        """Go back to the last copy, after a collective has failed."""
        for variable, value in zip(self.variables, self._kept, strict=True):
            variable.assign(value)
        for passes in all_passes().values():
            passes.go_back(self._kept_passes.get(passes, []))
        super().restore()

    def sync(self) -> None:
        """Give every rank the first rank's variables and values. Collective."""
        broadcast_variables(self._common, root_rank=0)
        counts = {number: passes.counts for number, passes in all_passes().items()}
        of_root = horovod.broadcast_object(counts, root_rank=0, name="hvdtrain.elastic.passes")
        for number, passes in all_passes().items():
            passes.go_on(of_root.get(number, []))
        super().sync()
        self._keep()  # only when the values have come too, so that `restore` goes back to one whole state

    def _not_copied(self) -> Iterable[Any]:
        return self._tracked

    def _keep(self) -> None:
        self._kept = [variable.numpy() for variable in self.variables]
        self._kept_passes = WeakKeyDictionary((passes, passes.kept()) for passes in all_passes().values())


class TensorFlowKerasState(TensorFlowState):
    """A Keras 3 model and its optimizer, and values as attributes.

    Args:
        model: a built model.
        optimizer: None takes the one that the model is compiled with.
        backend: accepted, as in Horovod, and without effect.
        kwargs: other values to keep, such as `epoch=0`.

    Raises:
        UsageError: for a model that has no weights yet.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        if not model.built:
            raise UsageError(
                f"The model {model.name} has no weights yet.",
                "Workers that join could not get them.",
                "call the model on a batch, or model.build(input_shape), before the state is made.",
            )
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)  # a plain model has none before compile()
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        of_optimizer = [] if self.optimizer is None else self.optimizer.variables
        self._weights = [unwrapped(variable) for variable in [*model.weights, *of_optimizer]]
        super().__init__([*model.variables, *of_optimizer], **kwargs)

    def restore(self) -> None:
        """Go back to the last copy, after a collective has failed."""
        super().restore()
        renew_normalization(self.model)

    def sync(self) -> None:
        """Give every rank the first rank's variables and values. Collective."""
        super().sync()
        renew_normalization(self.model)

    @property
    def _common(self) -> list[Any]:
        """Without the states of random numbers: all ranks would drop the same units."""
        return self._weights

    def _not_copied(self) -> Iterable[Any]:
        of_optimizer = [] if self.optimizer is None else [self.optimizer, *self.optimizer.variables]
        return [*self._tracked, self.model, *self.model.layers, *self.model.variables, *of_optimizer]


def __getattr__(name: str) -> NoReturn:
    raise missing_name("hvdtrain.tensorflow.elastic", name, __all__)
