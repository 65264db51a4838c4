"""`hvd.elastic` for `model.fit`: a state of the model, and callbacks that keep it up to date."""

from typing import Any, NoReturn

import keras

from hvdtrain.errors import missing_name
from hvdtrain.tensorflow.elastic import TensorFlowKerasState, run

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]


class KerasState(TensorFlowKerasState):
    """A Keras model, its optimizer and other values, equal on all ranks after each change of workers.

    Args:
        model: a built model.
        optimizer: None takes the one that the model is compiled with.
        kwargs: other values to keep, such as `batch=0, epoch=0`.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer=optimizer, **kwargs)


class CommitStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Commits the state after every `batches_per_commit` batches and at the end of each epoch.

    Args:
        state: what `hvd.elastic.run` gave to the training function.
        batches_per_commit: batches between two commits.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = self._remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        self._remaining = self.batches_per_commit  # on all ranks the same, after a change of workers too

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._remaining -= 1
        if self._remaining == 0:
            self.commit()
            self._remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.commit()

    def commit(self) -> None:
        """Commit the state: a subclass may do more."""
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps `state.batch` at the number of batches that are trained in this epoch, and at 0 between epochs.

    Keras 3 does not let a callback shorten an epoch. To go on in the middle of one, call `fit` for the rest of it, and
    again for the other epochs, with `CommitStateCallback` after this callback:

        if 0 < state.batch < steps:
            model.fit(..., epochs=1, steps_per_epoch=steps - state.batch)
        model.fit(..., epochs=epochs - state.epoch, steps_per_epoch=steps)

    Args: `state`: what `hvd.elastic.run` gave to the training function.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._before = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._before = self.state.batch  # not 0 in the rest of an epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        # Only the epoch's end counts its last batch, which is trained again after a loss between the two: Keras takes a
        # fit of no steps as one of all data.
        is_last = batch + 1 == self.params.get("steps")
        self.state.batch = self._before + batch + (0 if is_last else 1)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps `state.epoch` at the number of epochs that are complete, over all calls of `fit`. These may count from 0 or
    from `initial_epoch`.

    Args: `state`: what `hvd.elastic.run` gave to the training function.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._offset: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        self._offset = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        if self._offset is None:
            self._offset = self.state.epoch - epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.state.epoch = (self._offset or 0) + epoch + 1


def __getattr__(name: str) -> NoReturn:
    raise missing_name("hvdtrain.keras.elastic", name, __all__)
