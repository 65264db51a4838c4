"""The callback that raises the learning rate gradually."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as horovod
import keras

from hvdtrain.errors import UsageError
from hvdtrain.keras.runtime import require_init


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
        start_lr: the rate of step 0; None is Goyal's `initial_lr / hvd.size()`, that is, no ramp with one worker.

    Raises:
        UsageError: if steps per epoch are unknown, or the optimizer follows a LearningRateSchedule.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        steps_per_epoch: int | None = None,
        start_lr: float | None = None,
    ) -> None:
        super().__init__()
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
        self._ramping = False
        self._done = False

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        steps = self._asked_steps_per_epoch or self.params.get("steps")
        if steps is None:
            raise UsageError(
                "The data do not say how many batches an epoch has.",
                "The warm-up counts its length in steps.",
                "give LearningRateWarmupCallback(steps_per_epoch=...).",
            )
        if isinstance(self.model.optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            raise UsageError(
                f"The optimizer's learning rate follows a {type(self.model.optimizer._learning_rate).__name__}.",
                "Keras does not let a callback set it.",
                "give the optimizer a number, or put the warm-up into the schedule and drop this callback.",
            )
        self._steps_per_epoch = int(steps)
        self._ramping = False
        self._done = False

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
            self.model.optimizer.learning_rate = rate
        self._ramping = True
        self._done = step >= warmup_steps
