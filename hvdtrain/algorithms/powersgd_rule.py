"""PowerSGD: two thin factors are sent instead of a matrix (Vogels, Karimireddy, Jaggi 2019, arXiv:1905.13727).

One rule for the arrays of any framework. Every worker has its own mean gradient G, such that the mean over workers is
that of the global batch, and E, the part of earlier gradients that compression has left out (its error memory):

    M  = G + E                     error feedback
    P  = mean over workers (M Q)   first message
    P  = orthonormal columns with the span of P
    Q' = Mᵀ P                      this worker's own
    Q  = mean over workers (Q')    second message; the next update begins from it (warm start)
    E  = M - P Q'ᵀ                 what this worker keeps for the next update
    P Qᵀ                           is used as the mean gradient

The result depends on the workers' E through their mean only. So the mean may replace each of them, at any number of
workers: a checkpoint holds the mean.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdtrain.named_arrays import State, require_fit

DEFAULT_RANK = 4
"""The paper's for its language model; 2 was enough for its image classifier."""

ERRORS = "exchange/powersgd/error/"
FACTORS = "exchange/powersgd/factor/"
"""Begin the names in a checkpoint of each parameter's mean E, in the parameter's shape, and Q."""

_SEED = 190513727


def pays(rows: int, columns: int, rank: int) -> bool:
    """Whether two factors of `rank` are fewer numbers than the matrix; then the rank is below both sides."""
    return (rows + columns) * rank < rows * columns


def matrix_shape(shape: Sequence[int], outputs: int) -> tuple[int, int]:
    """Rows and columns of an array as a matrix: one end of its dimensions against all others.

    Args:
        shape: of a parameter; of one dimension or none, it has one column.
        outputs: 0 where the first dimension counts outputs (torch), -1 where the last one does (Keras).
    """
    numbers = math.prod(shape)
    if len(shape) < 2 or numbers == 0:
        return (numbers, 1)
    others = numbers // shape[outputs]
    return (shape[0], others) if outputs == 0 else (others, shape[-1])


def first_factor(place: int, columns: int, rank: int) -> NDArray[np.float32]:
    """The Q with which training begins, of shape [columns, rank]: Gaussian, the same on every worker.

    Args: `place`: of the parameter among those that are trained, so that no two begin with the same.
    """
    return np.random.default_rng([_SEED, place]).standard_normal((columns, rank), dtype=np.float32)


@dataclass(frozen=True)
class Operations:
    """What is done with arrays besides `@`, `+=` and `-=`, which may work in place or not."""

    transposed: Callable[[Any], Any]
    # of a matrix [n, r], r ≤ n: orthonormal columns whose span contains its own, also where those depend on each other.
    # Householder's QR does that; the process of Gram and Schmidt does not.
    orthonormal: Callable[[Any], Any]
    revived: Callable[[Any, Any], Any]  # of Q and the first Q: Q, with each column of zeros replaced by the first Q's


@dataclass(eq=False)
class Round:
    """One update's reduction of any number of matrices; call its methods in their order. All lists have one length."""

    gradients: Sequence[Any]  # G, each [n, m]
    # E, each [n, m]; changed in place where arrays allow it; then they hold the new errors at the end
    errors: Sequence[Any]
    factors: Sequence[Any]  # Q, each [m, r], the same on all workers
    operations: Operations

    def __post_init__(self) -> None:
        self._matrices: list[Any] = []
        for matrix, gradient in zip(self.errors, self.gradients, strict=True):
            matrix += gradient  # in place where arrays allow it
            self._matrices.append(matrix)
        self._own: list[Any] = []
        self.left: list[Any] = []
        """P, each [n, r], the same on all workers. Known after `second_message`."""

    def first_message(self) -> list[Any]:
        return [matrix @ factor for matrix, factor in zip(self._matrices, self.factors, strict=True)]

    def second_message(self, means: Sequence[Any]) -> list[Any]:
        """From the means of the first message: arrays of shape [m, r] to be averaged; their means are Q."""
        self.left = [self.operations.orthonormal(mean) for mean in means]
        self._own = [self.operations.transposed(m) @ p for m, p in zip(self._matrices, self.left, strict=True)]
        return self._own

    def new_errors(self) -> list[Any]:
        """E for the next update; it does not depend on the second message's means."""
        errors = []
        for matrix, p, q in zip(self._matrices, self.left, self._own, strict=True):
            matrix -= p @ self.operations.transposed(q)  # in place where arrays allow it
            errors.append(matrix)
        return errors

    def next_factors(self, right: Sequence[Any], first_factors: Sequence[Any]) -> list[Any]:
        """Q for the next update.

        A column of zeros, which a gradient of zeros leaves, would remain zero forever, so the first Q replaces it.
        """
        return [self.operations.revived(q, first) for q, first in zip(right, first_factors, strict=True)]


class Memory:
    """What PowerSGD remembers of each matrix between updates, as named arrays in a checkpoint.

    Args:
        matrices: by the parameters' names, objects with `error`, in the parameter's shape, `factor` and `first_factor`.

    Attributes:
        loss_multiplier: each worker's own mean gradient is needed, not its part of the mean over the global batch.
    """

    _to_host: Callable[[Any], NDArray[Any]]  # a copy of a tensor in host memory
    _assign: Callable[[Any, NDArray[Any]], None]  # puts an array, which may be a read-only file map, into a tensor

    def __init__(self, size: int, matrices: Mapping[str, Any]) -> None:
        self.loss_multiplier = float(size)
        self._matrices = matrices

    def rank_local_state(self) -> State:
        return {ERRORS + name: self._to_host(matrix.error) for name, matrix in self._matrices.items()}

    def load_rank_local_state(self, arrays: State) -> None:
        for name, matrix in self._matrices.items():
            self._assign(matrix.error, arrays[ERRORS + name])

    def state(self) -> State:
        factors = {FACTORS + name: self._to_host(matrix.factor) for name, matrix in self._matrices.items()}
        return self.rank_local_state() | factors

    def load_state(self, state: State) -> None:
        """Put back what `state` returned; a state without PowerSGD's arrays resets errors and factors.

        Raises `UsageError`: arrays are missing, or have other names or shapes.
        """
        saved = {name: array for name, array in state.items() if name.startswith((ERRORS, FACTORS))}
        if saved:
            require_fit(
                saved,
                {name: array.shape for name, array in self.state().items()},
                "The saved errors and factors of PowerSGD do not fit.",
                "give the --powersgd-rank and the model that they were saved with, or start in another --output-dir.",
            )
        else:
            first = {FACTORS + name: self._to_host(matrix.first_factor) for name, matrix in self._matrices.items()}
            saved = first | {name: np.zeros_like(error) for name, error in self.rank_local_state().items()}
        self.load_rank_local_state(saved)
        for name, matrix in self._matrices.items():
            self._assign(matrix.factor, saved[FACTORS + name])
