"""The comm hook that sends gradients as the two factors of PowerSGD (`hvdtrain.algorithms.powersgd_rule`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hvdtrain.adapters.choose_sync import ChosenSync
from hvdtrain.adapters.keras.comm_hooks import CommHook, GradBucket, Gradient, cut, flattened
from hvdtrain.adapters.keras.state import assign, to_array
from hvdtrain.algorithms import powersgd_rule

Summed = Callable[[Any, str], Any]
"""The sum over ranks of a flat tensor, under a name."""


@dataclass(frozen=True)
class _Matrix:
    """One variable that is sent as factors."""

    path: str
    shape: tuple[int, int]  # (n, m) of it as a matrix
    error: tf.Variable  # of the variable's shape
    factor: tf.Variable  # [m, r]
    first_factor: Any  # the same shape, constant


class PowerSgd(powersgd_rule.Memory, CommHook):
    """Each bucket has two messages, as in torch's `PowerSgd`.

    Args:
        variables: all that are trained, in the order of their gradients.
        chosen: with the rank of the factors; a matrix for which they would not be smaller is sent as it is.
    """

    _to_host, _assign = staticmethod(to_array), staticmethod(assign)

    def __init__(self, summed: Summed, variables: Sequence[Any], chosen: ChosenSync) -> None:
        rank = chosen.powersgd_rank
        self._by_place = {
            place: _matrix(place, variable, rank) for place, variable in enumerate(variables) if _pays(variable, rank)
        }
        super().__init__(chosen.ranks, {matrix.path: matrix for matrix in self._by_place.values()})
        self._summed, self._size = summed, chosen.ranks
        self._factor = float(chosen.ranks) if chosen.sums_means else 1.0

    def reduce(self, bucket: GradBucket) -> list[Any]:
        factored = [g for g in bucket.gradients if g.place in self._by_place]
        rest = [g for g in bucket.gradients if g.place not in self._by_place]
        matrices = [self._by_place[gradient.place] for gradient in factored]
        update = powersgd_rule.Round(
            [tf.reshape(g.value, m.shape) for g, m in zip(factored, matrices, strict=True)],
            [tf.reshape(m.error, m.shape) for m in matrices],
            [m.factor.value() for m in matrices],
            _OPERATIONS,
        )
        first = update.first_message() + [gradient.value for gradient in rest]
        means = self._mean(first, bucket.dtype, f"{bucket.name}_left")
        reduced = {g.place: self._dense(mean, g) for g, mean in zip(rest, means[len(factored) :], strict=True)}
        if factored:
            right = self._mean(update.second_message(means[: len(factored)]), bucket.dtype, f"{bucket.name}_right")
            _remember(matrices, update, right)
            for gradient, p, q in zip(factored, update.left, right, strict=True):
                reduced[gradient.place] = self._dense(tf.matmul(p, q, transpose_b=True), gradient)
        return [reduced[gradient.place] for gradient in bucket.gradients]

    def _mean(self, values: Sequence[Any], dtype: tf.DType, name: str) -> list[Any]:
        flat = self._summed(flattened(values, dtype), name) / self._size
        return cut(flat, [value.shape for value in values])

    def _dense(self, mean: Any, gradient: Gradient) -> Any:
        return tf.reshape(tf.cast(mean * self._factor, gradient.value.dtype), gradient.shape)


def _pays(variable: Any, rank: int) -> bool:
    """Matrices of 16 bits cannot be orthogonalized."""
    return variable.dtype in ("float32", "float64") and powersgd_rule.pays(*_shape(variable), rank)


def _shape(variable: Any) -> tuple[int, int]:
    return powersgd_rule.matrix_shape(tuple(variable.shape), outputs=-1)


def _matrix(place: int, variable: Any, rank: int) -> _Matrix:
    shape = _shape(variable)
    first = tf.constant(powersgd_rule.first_factor(place, shape[1], rank), variable.dtype)
    error = tf.Variable(tf.zeros(tuple(variable.shape), variable.dtype), trainable=False)
    return _Matrix(variable.path, shape, error, tf.Variable(first, trainable=False), first)


def _remember(matrices: Sequence[_Matrix], update: powersgd_rule.Round, right: Sequence[Any]) -> None:
    factors = update.next_factors(right, [matrix.first_factor for matrix in matrices])
    for matrix, error, factor in zip(matrices, update.new_errors(), factors, strict=True):
        matrix.error.assign(tf.reshape(error, matrix.error.shape))
        matrix.factor.assign(factor)


_OPERATIONS = powersgd_rule.Operations(
    transposed=tf.transpose,
    orthonormal=lambda matrix: tf.linalg.qr(matrix).q,
    revived=lambda factor, first: tf.where(tf.reduce_all(factor == 0, axis=0), first, factor),
)
