"""`LearningRateScheduleCallback` and `BestModelCheckpoint`, as in `horovod.keras`."""

from collections.abc import Callable
from typing import Any

import keras

from hvdtrain.errors import UsageError
from hvdtrain.tensorflow.start import require_init


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate to `initial_lr * multiplier(epoch)` from `start_epoch` to before `end_epoch`.

    Args:
        initial_lr: the rate that is multiplied.
        multiplier: a function of the epoch, or a number m, which means `m ** (epoch - start_epoch)`.
        start_epoch, end_epoch: where it acts; None is to the end.
        staircase: once an epoch, with whole epochs; otherwise before each batch, with `epoch + batch / steps`.
        momentum_correction: accepted, as in Horovod, and without effect: Keras 3 compiles the momentum into the step.
        steps_per_epoch: batches per epoch; None takes what `fit` knows.

    Raises:
        UsageError: if steps per epoch are needed and unknown, or the optimizer follows a LearningRateSchedule.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,  # noqa: ARG002 (Horovod's argument)
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        require_init("hvd.callbacks.LearningRateScheduleCallback")
        self.initial_lr, self.staircase = initial_lr, staircase
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self._multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier ** (epoch - start_epoch)
        self._steps, self._epoch = steps_per_epoch, 0

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        refuse_schedule(self.model.optimizer)
        if not self.staircase and not self._steps:
            self._steps = steps_of(self.params, "LearningRateScheduleCallback")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        if self._epoch < self.start_epoch or (self.end_epoch is not None and self._epoch >= self.end_epoch):
            return
        if not self.staircase and self._steps:
            self._set(self._epoch + batch / self._steps)
        elif batch == 0:
            self._set(self._epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)

    def _set(self, epoch: float) -> None:
        self.model.optimizer.learning_rate = self.initial_lr * self._multiplier(epoch)


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """`keras.callbacks.ModelCheckpoint` with `save_best_only`, as in `horovod.keras`; set its `filepath` before `fit`.

    Args: `filepath`: where to save; the others are ModelCheckpoint's.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: str = "best.keras",
    ) -> None:
        super().__init__(
            filepath, monitor=monitor, verbose=verbose, save_best_only=True, mode=mode, save_freq=save_freq
        )


def steps_of(params: dict[str, Any], callback: str) -> int:
    """The batches of an epoch, as `fit` knows them; raises `UsageError` if it does not."""
    steps = params.get("steps")
    if steps is None:
        raise UsageError(
            "The data do not say how many batches an epoch has.",
            f"{callback} counts in steps.",
            f"give {callback}(steps_per_epoch=...).",
        )
    return int(steps)


def refuse_schedule(optimizer: Any) -> None:
    """Raise `UsageError` for an optimizer whose rate no callback can set."""
    if isinstance(optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        raise UsageError(
            f"The optimizer's learning rate follows a {type(optimizer._learning_rate).__name__}.",
            "Keras does not let a callback set it.",
            "give the optimizer a number, or put the change into the schedule and drop this callback.",
        )
