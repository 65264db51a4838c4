"""`LearningRateWarmupCallback` and `LearningRateScheduleCallback`, with the arguments of `horovod.keras`."""

from collections.abc import Callable
from typing import Any

import horovod.tensorflow as horovod
import keras

from hvdtrain.errors import UsageError
from hvdtrain.keras.corrected_momentum import CorrectedMomentum
from hvdtrain.tensorflow.start import require_init


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate to `initial_lr * multiplier(epoch)` from `start_epoch` to before `end_epoch`.

    Args:
        initial_lr: the rate that is multiplied.
        multiplier: a function of the epoch, or a number m, which means `m ** (epoch - start_epoch)`.
        start_epoch, end_epoch: where it acts; None is to the end.
        staircase: once an epoch, with whole epochs; otherwise before each batch, with `epoch + batch / steps`.
        momentum_correction: see `CorrectedMomentum`.
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
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        require_init("hvd.callbacks.LearningRateScheduleCallback")
        self.initial_lr, self.staircase = initial_lr, staircase
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self._multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier ** (epoch - start_epoch)
        self._steps, self._epoch = steps_per_epoch, 0
        self._momentum = CorrectedMomentum(momentum_correction)

    def set_model(self, model: Any) -> None:
        """Called by `fit` before it compiles its step."""
        super().set_model(model)
        self._momentum.attach(model)

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

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._momentum.restore()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)

    def _set(self, epoch: float) -> None:
        self._momentum.set_rate(self.initial_lr * self._multiplier(epoch))


def warmup_learning_rate(step: int, warmup_steps: int, start: float, target: float) -> float:
    """The learning rate of a step: from `start` at step 0 in equal increments to `target` at `warmup_steps`.

        start + (target - start) * min(1, step / warmup_steps)

    The gradual warm-up of Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.2.
    """
    if step >= warmup_steps:
        return target
    return start + (target - start) * step / warmup_steps


class LearningRateWarmupCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Ramps the learning rate up over the first epochs, by `warmup_learning_rate` of the step since epoch 0.

    The rate is a function of epoch and batch only, so a run resumed with `initial_epoch` goes on where it was. After
    the warm-up's last step the rate is `initial_lr`, and from then on this callback leaves it alone, so that others
    may lower it. Nothing is multiplied by the number of workers: `initial_lr` is the rate that the warm-up ends at.

    Args:
        initial_lr: the full rate, usually the one-worker rate times hvd.size() (linear scaling, Goyal et al. 2017).
        warmup_epochs: how long the ramp is, in epochs; 5 is Goyal's; fractions are fine, 0 switches it off.
        steps_per_epoch: batches per epoch and rank; None takes what `fit` knows.
        momentum_correction: see `CorrectedMomentum`.
        verbose: 1 lets rank 0 print a line when the warm-up is over.
        start_lr: the rate of step 0; None is Goyal's `initial_lr / hvd.size()`, that is, no ramp with one worker.

    Raises:
        UsageError: if steps per epoch are unknown, or the optimizer follows a LearningRateSchedule.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        *,
        start_lr: float | None = None,
    ) -> None:
        super().__init__()
        self._verbose = verbose
        require_init("hvd.callbacks.LearningRateWarmupCallback")
        if warmup_epochs < 0 or (steps_per_epoch is not None and steps_per_epoch < 1):
            raise UsageError(
                f"The warm-up has warmup_epochs={warmup_epochs} and steps_per_epoch={steps_per_epoch}.",
                "Its number of steps is their product.",
                "use warmup_epochs of at least 0 and steps_per_epoch of at least 1.",
            )
        self.initial_lr = initial_lr
        self.warmup_epochs = warmup_epochs
        self.start_lr = initial_lr / horovod.size() if start_lr is None else start_lr
        self._asked_steps_per_epoch = steps_per_epoch
        self._steps_per_epoch = 1
        self._epoch = 0
        self._ramping = self._done = False
        self._momentum = CorrectedMomentum(momentum_correction)

    def set_model(self, model: Any) -> None:
        """Called by `fit` before it compiles its step."""
        super().set_model(model)
        self._momentum.attach(model)

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        steps = self._asked_steps_per_epoch or steps_of(self.params, "LearningRateWarmupCallback")
        refuse_schedule(self.model.optimizer)
        self._steps_per_epoch = int(steps)
        self._ramping = self._done = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        if self._done:
            return
        step = self._epoch * self._steps_per_epoch + batch
        warmup_steps = round(self.warmup_epochs * self._steps_per_epoch)
        # A run resumed after its warm-up keeps the rate it has: another callback may have lowered it.
        if step <= warmup_steps or self._ramping:
            rate = warmup_learning_rate(step, warmup_steps, self.start_lr, self.initial_lr)
            self._momentum.set_rate(rate)
        self._ramping = True
        self._done = step >= warmup_steps
        if self._done and self._verbose and horovod.rank() == 0 and step == warmup_steps:
            print(f"\nEpoch {self._epoch + 1}: finished gradual learning rate warmup to {self.initial_lr:g}.")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._momentum.restore()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)


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
    """Raise `UsageError` for an optimizer whose rate no callback can set, within loss scaling too."""
    rate = getattr(optimizer, "inner_optimizer", optimizer)._learning_rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        raise UsageError(
            f"The optimizer's learning rate follows a {type(rate).__name__}.",
            "Keras does not let a callback set it.",
            "give the optimizer a number, or put the change into the schedule and drop this callback.",
        )
