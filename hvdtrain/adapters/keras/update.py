"""One update of the weights from reduced gradients, traced into the step: unscale, clip, apply; and their average."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from numpy.typing import NDArray

from hvdtrain.adapters.keras.state import to_array
from hvdtrain.algorithms.ema import WeightAverage, kept_share
from hvdtrain.algorithms.loss_scale import LossScale, ScaledUpdate, clip_coefficient


def global_norm(gradients: Sequence[Any]) -> Any:
    """Of all gradients together; None is nothing."""
    return tf.linalg.global_norm([g for g in gradients if g is not None])


class Update(ScaledUpdate):
    """Changes the weights of an optimizer's variables.

    Args:
        optimizer: makes the step.
        max_norm: limit on the norm of all gradients together; None: there is none.
        loss_scale: None: the loss is not scaled, and no step waits for the device. With it each step waits once: the
            norm shows both whether a gradient is not finite, and by how much to clip.
        logs_norm: the norm is computed although nothing but `norms` needs it.
        total_norm: of all gradients together, given those of an update; other ranks may have more of them.
    """

    def __init__(
        self,
        optimizer: Any,
        max_norm: float | None = None,
        loss_scale: LossScale | None = None,
        logs_norm: bool = False,
        total_norm: Callable[[Sequence[Any]], Any] = global_norm,
    ) -> None:
        super().__init__(loss_scale, tf.maximum)
        self._optimizer, self._max_norm, self._total_norm = optimizer, max_norm, total_norm
        self._knows_norm = logs_norm or max_norm is not None or loss_scale is not None

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any], scale: Any) -> tuple[Any, Any]:
        """Called while the step is traced.

        Returns:
            A bool tensor, whether the weights were changed, and the norm of the gradients before clipping, 0 where it
            is not known.
        """
        if self._loss_scale is not None:
            return self._apply_scaled(gradients, variables, scale)
        norm = self._total_norm(gradients) if self._knows_norm else tf.constant(0.0)
        if self._max_norm is not None:
            gradients = _multiplied(gradients, clip_coefficient(norm, self._max_norm, tf.minimum))
        self._optimizer.apply(gradients, variables)
        return tf.constant(True), norm

    def _apply_scaled(self, gradients: Sequence[Any], variables: Sequence[Any], scale: Any) -> tuple[Any, Any]:
        norm = self._total_norm(gradients) / scale
        finite = tf.math.is_finite(norm)
        factor = 1.0 / scale
        if self._max_norm is not None:
            factor *= clip_coefficient(norm, self._max_norm, tf.minimum)

        def change() -> Any:
            self._optimizer.apply(_multiplied(gradients, factor), variables)
            return tf.constant(True)

        return tf.cond(finite, change, lambda: tf.constant(False)), norm

    def after_step(self, changed: Any, norm: Any) -> bool:
        """Called between graphs with what `apply` returned; returns whether the weights were changed."""
        finite = self._loss_scale is None or bool(changed)  # asking the tensor would wait for the device
        if finite and self._knows_norm:
            self.norms.add(norm)
        if self._loss_scale is not None:
            self._loss_scale.after_step(finite)
        return finite

    def after_steps(self, norms: Any) -> None:
        """Called after a graph of several updates, without loss scaling. Args: `norms`: of each, float32 [updates]."""
        if self._knows_norm:
            for norm in tf.unstack(norms):
                self.norms.add(norm)


def _multiplied(gradients: Sequence[Any], factor: Any) -> list[Any]:
    return [g if g is None else tf.math.scalar_mul(tf.cast(factor, g.dtype), g) for g in gradients]


class KerasWeightAverage(WeightAverage):
    """See `WeightAverage`. Build it before the training step is traced, and call `update` in that step.

    Args:
        model: built, with the weights from which the averages start.
        decay: see `WeightAverage`.
    """

    def __init__(self, model: keras.Model, decay: float) -> None:
        weights = {variable.path: variable for variable in model.trainable_variables}
        super().__init__(decay, weights, {p: tf.Variable(v.value, trainable=False) for p, v in weights.items()})

    def update(self, step: Any) -> None:
        """See `WeightAverage`. `step` may be an integer scalar of the graph, so that one trace serves all updates."""
        drawn = 1 - kept_share(self._decay, tf.cast(step, tf.float64), tf.minimum)
        for path, average in self._averages.items():
            average.assign_add((self._weights[path].value - average) * tf.cast(drawn, average.dtype))

    def _copied(self, weight: Any) -> Any:
        return tf.identity(weight.value)

    def _assign(self, target: Any, values: Any) -> None:
        target.assign(values.value if isinstance(values, keras.Variable) else values)

    def _to_host(self, average: Any, into: NDArray[Any] | None) -> Any:
        return to_array(average, into)
