"""One update of the weights from reduced gradients, traced into the step: unscale, clip, apply; and their average."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from hvdtrain.adapters.keras.state import assign, to_array
from hvdtrain.algorithms.clipping import NO_CLIPPING, Clipping
from hvdtrain.algorithms.ema import WeightAverage, kept_share
from hvdtrain.algorithms.loss_scale import LossScale, ScaledUpdate


def global_norm(gradients: Sequence[Any]) -> Any:
    """Return the norm of all gradients together; None counts as nothing."""
    by_dtype: dict[Any, list[Any]] = {}
    for gradient in gradients:
        if gradient is not None:
            by_dtype.setdefault(gradient.dtype, []).append(gradient)
    if len(by_dtype) <= 1 and tf.float16 not in by_dtype:
        return tf.linalg.global_norm([g for of_dtype in by_dtype.values() for g in of_dtype])
    # Squares of float16 would be infinite.
    wide = [(tf.float64 if dtype == tf.float64 else tf.float32, given) for dtype, given in by_dtype.items()]
    norms = [tf.linalg.global_norm([tf.cast(g, dtype) for g in given]) for dtype, given in wide]
    return tf.linalg.global_norm([tf.cast(norm, tf.float32) for norm in norms])


class Update(ScaledUpdate):
    """Changes the weights of an optimizer's variables.

    Args: `total_norm`: of all gradients together, given those of an update; other ranks may have more of them.
    """

    def __init__(
        self,
        optimizer: Any,
        clipping: Clipping = NO_CLIPPING,
        loss_scale: LossScale | None = None,
        total_norm: Callable[[Sequence[Any]], Any] = global_norm,
    ) -> None:
        super().__init__(clipping, loss_scale, tf.maximum)
        self._optimizer, self._total_norm = optimizer, total_norm

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any], scale: Any) -> tuple[Any, Any]:
        """Called while the step is traced.

        Returns:
            A bool tensor, whether the weights were changed, and the norm of the gradients before clipping, 0 where it
            is not known.
        """
        norm = self._total_norm(gradients) if self._needs_norm else tf.constant(0.0)
        if self._loss_scale is None:
            self._optimizer.apply(self._clipped(gradients, norm, 1.0), variables)
            return tf.constant(True), norm
        norm /= scale

        def change() -> Any:
            self._optimizer.apply(self._clipped(gradients, norm, 1.0 / scale), variables)
            return tf.constant(True)

        return tf.cond(tf.math.is_finite(norm), change, lambda: tf.constant(False)), norm

    def _clipped(self, gradients: Sequence[Any], norm: Any, unscaling: Any) -> Sequence[Any]:
        """Undo the loss scale, and limit what is left."""
        if self._clipping.max_norm is not None:
            unscaling *= self._clipping.factor(norm, tf.minimum)
        elif self._loss_scale is None:
            return gradients
        return [g if g is None else tf.math.scalar_mul(tf.cast(unscaling, g.dtype), g) for g in gradients]

    def after_step(self, changed: Any, norm: Any) -> bool:
        """Called between graphs with what `apply` returned; returns whether the weights were changed."""
        finite = self._loss_scale is None or bool(changed)  # asking the tensor would wait for the device
        if finite and self._needs_norm:
            self.norms.add(norm)
        if self._loss_scale is not None:
            self._loss_scale.after_step(finite)
        return finite

    def after_steps(self, norms: Any) -> None:
        """Called after a graph of several updates, without loss scaling. Args: `norms`: of each, float32 [updates]."""
        if self._needs_norm:
            for norm in tf.unstack(norms):
                self.norms.add(norm)


class KerasWeightAverage(WeightAverage):
    """See `WeightAverage`. Build it before the training step is traced, and call `update` in that step."""

    _assign, _to_host = staticmethod(assign), staticmethod(to_array)

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
