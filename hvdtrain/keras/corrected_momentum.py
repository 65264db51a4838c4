"""Momentum that a change of the learning rate does not distort."""

from typing import Any

import tensorflow as tf

from hvdtrain.errors import UsageError


class CorrectedMomentum:
    """Sets learning rates; for the step after a change from `old` to `new`, the momentum is multiplied by new / old.

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
        momentum = getattr(optimizer, "momentum", None)
        if not self._enabled or not isinstance(momentum, float) or momentum == 0:
            return
        if not isinstance(momentum, _Momentum):
            # Not by setattr: Keras would take it for state to be saved.
            vars(optimizer)["momentum"] = momentum = _Momentum(momentum)
            model.train_function = None  # that of an earlier fit has the number in it
        self._momentum = momentum

    def set_rate(self, rate: float) -> None:
        """The learning rate of the next step."""
        before = float(self._outer.learning_rate)
        self._outer.learning_rate = rate
        if self._momentum is not None and before > 0 and rate != before:
            self._momentum.factor.assign(rate / before)

    def restore(self) -> None:
        """After the step."""
        if self._momentum is not None:
            self._momentum.factor.assign(1.0)


class _Momentum(float):
    """A number in the optimizer's configuration, and in a compiled step this number times a variable."""

    dtype = "float32"  # Keras asks whatever is no plain number

    def __init__(self, _value: float) -> None:
        self.factor = tf.Variable(1.0, trainable=False, name="hvdtrain_momentum_factor")

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        value = self.factor * float(self)
        return tf.cast(value, dtype or value.dtype, name=name)
