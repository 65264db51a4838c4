"""One update of the weights from gradients that are already reduced, traced into the step: unscale, clip, apply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, final

import tensorflow as tf

from hvdtrain.algorithms.clipping import clip_coefficient
from hvdtrain.algorithms.loss_scale import NormMean, Scaled, Unscaled
from hvdtrain.state import State


class Update(Protocol):
    """Changes the weights of an optimizer's variables."""

    norms: NormMean

    @property
    def scale(self) -> float:
        """What the loss is to be multiplied by before the backward pass, in the step that begins now."""
        ...

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any], scale: Any) -> Any:
        """Called while the step is traced; returns a bool tensor, whether the weights were changed, and the norm of the
        gradients before clipping, 0 where it is not known.
        """
        ...

    def after_step(self, changed: Any, norm: Any) -> bool:
        """Told of what `apply` returned, between graphs; returns whether the weights were changed."""
        ...

    def state(self) -> State:
        """What a resumed run needs."""
        ...

    def load_state(self, state: State) -> None:
        """Put back what `state` returned."""


@final
class PlainUpdate(Unscaled):
    """Without loss scaling: nothing waits for the device.

    Args:
        optimizer: makes the step.
        max_norm: of all gradients together; None: they are left as they are.
    """

    def __init__(self, optimizer: Any, max_norm: float | None) -> None:
        super().__init__()
        self._optimizer, self._max_norm = optimizer, max_norm

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any], scale: Any) -> Any:  # noqa: ARG002  it is 1
        norm = tf.constant(0.0)
        if self._max_norm is not None:
            norm = _norm(gradients)
            gradients = _multiplied(gradients, clip_coefficient(norm, self._max_norm, tf.minimum))
        self._optimizer.apply(gradients, variables)
        return tf.constant(True), norm

    def after_step(self, changed: Any, norm: Any) -> bool:  # noqa: ARG002  asking the tensor would wait for the device
        if self._max_norm is not None:
            self.norms.add(norm)
        return True


@final
class ScaledUpdate(Scaled):
    """With loss scaling: waits for the device once a step. Arguments as `PlainUpdate`'s.

    The norm of all gradients says at once whether one of them is not finite, and by how much to clip.
    """

    def __init__(self, optimizer: Any, max_norm: float | None) -> None:
        super().__init__()
        self._optimizer, self._max_norm = optimizer, max_norm

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any], scale: Any) -> Any:
        norm = _norm(gradients) / scale
        finite = tf.math.is_finite(norm)
        factor = 1.0 / scale
        if self._max_norm is not None:
            factor *= clip_coefficient(norm, self._max_norm, tf.minimum)

        def change() -> Any:
            self._optimizer.apply(_multiplied(gradients, factor), variables)
            return tf.constant(True)

        return tf.cond(finite, change, lambda: tf.constant(False)), norm

    def after_step(self, changed: Any, norm: Any) -> bool:
        finite = bool(changed)
        if finite:
            self.norms.add(norm)
        self._loss_scale.after_step(finite)
        return finite


def _norm(gradients: Sequence[Any]) -> Any:
    return tf.linalg.global_norm([g for g in gradients if g is not None])


def _multiplied(gradients: Sequence[Any], factor: Any) -> list[Any]:
    return [g if g is None else tf.math.scalar_mul(tf.cast(factor, g.dtype), g) for g in gradients]
