"""Where each rank's `fit` is, agreed before ranks wait for each other: one that has gone elsewhere is found at once."""

from collections.abc import Callable
from typing import Any, Final

import horovod.tensorflow as horovod
import numpy as np
import tensorflow as tf

from hvdtrain.comm.messages import gather_json
from hvdtrain.comm.peer_failure import waits_for_peers
from hvdtrain.errors import UsageError
from hvdtrain.keras.runtime import communicator

_PLACES: Final = (
    "begins epoch {epoch}",
    "has batch {batch} of epoch {epoch}",
    "has no batch {batch} in epoch {epoch}",
    "was stopped after batch {batch} of epoch {epoch}",
    "validates epoch {epoch}",
    "ends epoch {epoch}",
    "goes on after epoch {epoch}",
    "was stopped after epoch {epoch}",
    "has ended after epoch {epoch}",
)
_EPOCH, _BATCH, _NO_BATCH, _STOPPED, _VALIDATION, _EPOCH_END, _GOES_ON, _STOPPED_AFTER, _END = range(len(_PLACES))
_NAME: Final = "hvdtrain.keras.fit_progress"
_ATTRIBUTE: Final = "_hvdtrain_fit_progress"


class FitProgress:
    """What one rank's `fit` does next, and whether all others do the same. All methods are collective.

    A callback that sets `model.stop_training` within an epoch on one rank, as TerminateOnNaN does, stops all ranks: the
    others leave out the step that they have begun. At the end of an epoch, as with EarlyStopping, all stop after that
    epoch. Everything else that ranks do not do together is refused.

    Args: `model`: which `fit` trains; its `train_step` has been given to `agree_on_steps`.

    Attributes: `stopped_rank`: the first rank that was stopped at the end of an epoch, if there was one.

    Raises: `UsageError`, from all methods and from the model's train function, on all ranks at once.
    """

    def __init__(self, model: Any) -> None:
        self._model, self._comm = model, communicator()
        self._epoch = self.batch = 0
        self._batches_are_over = True
        self.stopped_rank: int | None = None
        vars(model)[_ATTRIBUTE] = self  # not by setattr: Keras would take it for a part of the model

    def begin_epoch(self, epoch: int) -> None:
        """Before its first batch. The callback then sets `batch` before each."""
        self._epoch, self.batch = epoch, 0
        self._meet(_EPOCH)
        self._batches_are_over = False
        self._model.train_function = _WatchedStep(_unwatched(self._model.train_function), self._step_left_out)

    def end_batches(self) -> None:
        """After the epoch's last batch; later calls do nothing."""
        if not self._batches_are_over:
            self._batches_are_over = True
            self._model.stop_training = self._meet(_STOPPED if self._model.stop_training else _NO_BATCH)

    def begin_validation(self) -> None:
        """Before the metrics of a validation within `fit`."""
        self.end_batches()
        self._meet(_VALIDATION)

    def end_epoch(self) -> None:
        """After the validation, if there is one."""
        self.end_batches()
        self._meet(_EPOCH_END)

    def end_callbacks(self) -> None:
        """After all callbacks of an epoch's end."""
        self._model.stop_training = self._meet(_STOPPED_AFTER if self._model.stop_training else _GOES_ON)

    def end(self) -> None:
        """At the end of `fit`."""
        self._meet(_END)
        vars(self._model).pop(_ATTRIBUTE, None)
        self._model.train_function = _unwatched(self._model.train_function)

    def _step_left_out(self) -> Any:
        """Not all ranks have a batch. Returns the logs of the step."""
        self._batches_are_over = True
        self._model.stop_training = self._compare(_BATCH)
        return self._model.get_metrics_result()

    def _meet(self, place: int) -> bool:
        """Whether a rank was stopped, if it is the end of the batches of an epoch or of an epoch."""
        is_stopped = place in (_STOPPED, _STOPPED_AFTER)
        if not self._comm.topology.is_distributed:
            return is_stopped
        with waits_for_peers(name=_NAME), tf.device("/cpu:0"):
            places = _places_of_ranks(tf.constant([place], tf.int32)).numpy()
        if not np.all(places == place):
            return self._compare(place)
        if place == _STOPPED_AFTER:
            self.stopped_rank = 0
        return is_stopped

    def _compare(self, place: int) -> bool:
        by_rank = gather_json(self._comm, [place, self._epoch, self.batch], f"{_NAME}.apart")
        places = {theirs for theirs, _, _ in by_rank}
        if _STOPPED in places and places <= {_BATCH, _NO_BATCH, _STOPPED}:
            return True
        if places == {_GOES_ON, _STOPPED_AFTER}:
            self.stopped_rank = next(rank for rank, (theirs, _, _) in enumerate(by_rank) if theirs == _STOPPED_AFTER)
            return True
        described = [
            f"rank {rank} {_PLACES[theirs].format(epoch=epoch + 1, batch=batch + 1)}"
            for rank, (theirs, epoch, batch) in enumerate(by_rank)
        ]
        raise UsageError(
            f"The ranks' calls of fit have come apart: {', '.join(described)}.",
            "Every step and every average needs all ranks, so that one of them would wait forever.",
            "give every rank equally many batches (by repeat() and steps_per_epoch), validation data or none, and "
            "the same callbacks in the same order, with a History of your own last.",
        )


class _WatchedStep:
    """A model's train function, after which this rank goes where the others are if they have had no batch."""

    def __init__(self, step: Callable[[Any], Any], left_out: Callable[[], Any]) -> None:
        self.step, self.left_out = step, left_out

    def __call__(self, iterator: Any) -> Any:
        try:
            return self.step(iterator)
        except tf.errors.InvalidArgumentError as error:
            if _NAME not in error.message:
                raise
        return self.left_out()


def _unwatched(step: Any) -> Any:
    return step.step if isinstance(step, _WatchedStep) else step


def trace_again(model: Any) -> None:
    """Forget what was traced in a fit before. Not within a step."""
    before = model.train_function
    model.test_function = model.predict_function = None
    if before is not None:
        model.make_train_function(force=True)
    if isinstance(before, _WatchedStep):
        model.train_function = _WatchedStep(model.train_function, before.left_out)


def agree_on_steps(model: Any) -> bool:
    """Let each step of `model` begin when all ranks have a batch for it. Returns whether that is new."""
    if "train_step" in vars(model):
        return False
    step = model.train_step
    with tf.device("/cpu:0"):  # a variable: a constant would be gathered once, while TensorFlow optimizes the graph
        mine = tf.Variable([_BATCH], trainable=False)

    def train_step(data: Any) -> Any:
        # The end of a generator is known only when a step has asked it for a batch: after all callbacks.
        parts = [part for part in tf.nest.flatten(data) if part is not None]
        with tf.control_dependencies(parts), tf.device("/cpu:0"):
            places = _places_of_ranks(mine.read_value())
            check = tf.debugging.Assert(tf.reduce_all(tf.equal(places, _BATCH)), [_NAME])
        with tf.control_dependencies([] if check is None else [check]):
            return step(data)

    vars(model)["train_step"] = train_step
    return True


def end_batches(model: Any) -> None:
    """For what reduces values after an epoch's last batch, before any callback knows of it. Collective within a fit."""
    progress = vars(model).get(_ATTRIBUTE)
    if progress is not None:
        progress.end_batches()


@tf.function(autograph=False)  # type: ignore[untyped-decorator]
def _places_of_ranks(place: Any) -> Any:
    """In a graph, in which Horovod's operations have names."""
    return horovod.allgather(place, name=_NAME, ignore_name_scope=True)
