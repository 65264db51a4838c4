"""Momentum that a change of the learning rate does not distort."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvdtrain.errors import UsageError
from hvdtrain.tensorflow.optimizer import reduction_of


class CorrectedMomentum:
    """Sets learning rates; for the update after a change from `old` to `new`, the momentum is multiplied by new / old.

    Keras' SGD keeps sums of learning rate times gradient, in which a new rate would count late. Goyal et al. 2017,
    "Accurate, Large Minibatch SGD", section 3, "Momentum correction".

    Args: `enabled`: False sets the rate only, as for optimizers without a momentum.

    Raises: `UsageError` unless `enabled` is a bool.
    """

    def __init__(self, enabled: bool) -> None:
        if not isinstance(enabled, bool):
            raise UsageError(
                f"momentum_correction is {enabled!r}.",
                "It says whether the momentum follows the learning rate.",
                "use True or False; steps_per_epoch is the argument after it.",
            )
        self._enabled = enabled
        self._momentum: _Momentum | None = None

    def attach(self, model: Any) -> None:
        """Before `fit` compiles the step, into which Keras writes the momentum as a number."""
        self._outer = model.optimizer
        optimizer = getattr(self._outer, "inner_optimizer", self._outer)
        given: Any = getattr(optimizer, "momentum", None)
        if not self._enabled or not isinstance(given, float) or given == 0:
            return
        # One that was made by the configuration of another has the other's momentum.
        if not isinstance(given, _Momentum) or "_backend_update_step" not in vars(optimizer):
            # Not by setattr: Keras would take it for state to be saved.
            vars(optimizer)["momentum"] = given = _Momentum(float(given))
            vars(optimizer)["_backend_update_step"] = _once(optimizer._backend_update_step, given)
            model.train_function = None  # that of an earlier fit has the number in it
        momentum: _Momentum = optimizer.momentum
        momentum.of_one_update = model.steps_per_execution > 1 or self._adds_passes(optimizer)
        momentum.factor.assign(1.0)  # a fit may have failed within a step
        self._momentum = momentum

    def _adds_passes(self, optimizer: Any) -> bool:
        """Whether not each step updates: loss scaling leaves out those whose gradients are not finite."""
        distributed = reduction_of(self._outer)
        counts = [each.gradient_accumulation_steps or 1 for each in (self._outer, optimizer)]
        is_scaled = self._outer is not optimizer
        return is_scaled or max(counts) > 1 or (distributed is not None and distributed.adds_passes)

    def set_rate(self, rate: float) -> None:
        """The learning rate of the next update."""
        before = float(self._outer.learning_rate)
        self._outer.learning_rate = rate
        if self._momentum is not None and before > 0 and rate != before:
            self._momentum.factor.assign(self._momentum.factor * (rate / before))

    def restore(self) -> None:
        """After the step, in which the task may have called the optimizer several times."""
        if self._momentum is not None and not self._momentum.of_one_update:
            self._momentum.factor.assign(1.0)


class _Momentum(float):
    """A number in the optimizer's configuration, and in a compiled step this number times a variable.

    Attributes: `of_one_update`: the factor is for one update, and not for all until the next callback.
    """

    of_one_update = False

    dtype = "float32"  # Keras asks whatever is no plain number

    def __init__(self, _value: float) -> None:
        self.factor = tf.Variable(1.0, trainable=False, name="hvdtrain_momentum_factor")

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        value = self.factor * float(self)
        return tf.cast(value, dtype or value.dtype, name=name)


def _once(update: Callable[..., Any], momentum: _Momentum) -> Callable[..., Any]:
    """Keras' update of all variables, after which the factor of one update is 1 again. It is not called for a pass
    whose gradients are only added up, and several times between two callbacks with `steps_per_execution`."""

    def updated(*arguments: Any) -> Any:
        result = update(*arguments)
        if momentum.of_one_update:
            momentum.factor.assign(1.0)
        return result

    return updated
