"""PowerSGD: two thin factors travel instead of a matrix (Vogels, Karimireddy, Jaggi 2019, arXiv:1905.13727).

The rule stands here once, for the arrays of any framework. Every worker brings its own mean gradient G, such that the
mean over workers is that of the global batch. With E, what this worker has not yet brought home (its error memory):

    M  = G + E                     error feedback
    P  = mean over workers (M Q)   first message
    P  = orthonormal columns with the span of P
    Q' = Mᵀ P                      this worker's own
    Q  = mean over workers (Q')    second message; the next update begins from it (warm start)
    E  = M - P Q'ᵀ                 what this worker keeps for the next update
    P Qᵀ                           is taken for the mean gradient

What comes out depends on the workers' E through their mean only. So the mean may stand for each of them, at any
number of workers: that is what a checkpoint holds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hvdtrain.state import require_fit

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
    """Rows and columns as which an array travels: one end of its dimensions against all others.

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
    """The Q that training begins with, of shape [columns, rank]: Gaussian, the same on every worker.

    Args:
        place: of the parameter among those that are trained, so that no two begin alike.
    """
    return np.random.default_rng([_SEED, place]).standard_normal((columns, rank), dtype=np.float32)


@dataclass(frozen=True)
class Operations:
    """Of the arrays in use. Besides, these have `@`, `+=` and `-=`, in place or not.

    Attributes:
        transposed: of a matrix.
        orthonormal: of a matrix [n, r], r ≤ n: orthonormal columns whose span holds its own, also where those depend
            on each other. Householder's QR does that; the process of Gram and Schmidt does not.
        revived: of Q and the first Q: Q, with each column of zeros replaced by the first Q's.
    """

    transposed: Callable[[Any], Any]
    orthonormal: Callable[[Any], Any]
    revived: Callable[[Any, Any], Any]


@final
class Round:
    """One update's exchange of any number of matrices, in the order of its methods. All lists are as long.

    Args:
        gradients: G, each [n, m].
        errors: E, each [n, m]; arrays that can be changed in place are, and hold the new errors at the end.
        factors: Q, each [m, r], the same on all workers.
        operations: of these arrays.
    """

    def __init__(
        self, gradients: Sequence[Any], errors: Sequence[Any], factors: Sequence[Any], operations: Operations
    ) -> None:
        self._operations = operations
        self._factors = factors
        self._matrices: list[Any] = []
        for matrix, gradient in zip(errors, gradients, strict=True):
            matrix += gradient  # in place where arrays allow it
            self._matrices.append(matrix)
        self._own: list[Any] = []
        self.left: list[Any] = []
        """P, each [n, r], the same on all workers. Known after `second_message`."""

    def first_message(self) -> list[Any]:
        """Arrays of shape [n, r] to be averaged over workers."""
        return [matrix @ factor for matrix, factor in zip(self._matrices, self._factors, strict=True)]

    def second_message(self, means: Sequence[Any]) -> list[Any]:
        """From the means of the first message: arrays of shape [m, r] to be averaged; their means are Q."""
        self.left = [self._operations.orthonormal(mean) for mean in means]
        self._own = [self._operations.transposed(m) @ p for m, p in zip(self._matrices, self.left, strict=True)]
        return self._own

    def new_errors(self) -> list[Any]:
        """E for the next update; known before the second message has travelled."""
        errors = []
        for matrix, p, q in zip(self._matrices, self.left, self._own, strict=True):
            matrix -= p @ self._operations.transposed(q)  # in place where arrays allow it
            errors.append(matrix)
        return errors

    def next_factors(self, right: Sequence[Any], first_factors: Sequence[Any]) -> list[Any]:
        """Q for the next update.

        From a column of zeros, which a gradient of zeros leaves, no other would ever come: it begins again.
        """
        return [self._operations.revived(q, first) for q, first in zip(right, first_factors, strict=True)]


def saved_arrays(
    state: Mapping[str, NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]
) -> Mapping[str, NDArray[Any]] | None:
    """PowerSGD's arrays in a checkpoint, by the names that they have there; None: it was written without.

    Args:
        state: named arrays, of which those of other names are left alone.
        shapes: of the arrays that this model needs.

    Raises:
        UsageError: arrays are missing, or have other names or shapes.
    """
    found = {name: array for name, array in state.items() if name.startswith((ERRORS, FACTORS))}
    if not found:
        return None
    require_fit(
        found,
        shapes,
        "The saved errors and factors of PowerSGD do not fit.",
        "give the --powersgd-rank and the model that they were saved with, or start again with --resume never.",
    )
    return found


class Memory(ABC):
    """What PowerSGD remembers of each matrix, as named arrays in a checkpoint. The names are the parameters'."""

    @abstractmethod
    def errors(self) -> dict[str, NDArray[Any]]:
        """Copies of what each matrix still owes, in its parameter's shape."""

    @abstractmethod
    def factors(self) -> dict[str, NDArray[Any]]:
        """Copies of each matrix's second factor."""

    @abstractmethod
    def put_error(self, name: str, error: NDArray[Any]) -> None:
        """Take up an error; the array may be a read-only file map."""

    @abstractmethod
    def put_factor(self, name: str, factor: NDArray[Any]) -> None:
        """Take up a factor; as `put_error`."""

    @abstractmethod
    def forget(self) -> None:
        """As at the start: nothing is owed, and factors are the first ones."""

    def rank_local_state(self) -> dict[str, NDArray[Any]]:
        return {ERRORS + name: error for name, error in self.errors().items()}

    def load_rank_local_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        for name in self.errors():
            self.put_error(name, arrays[ERRORS + name])

    def state(self) -> dict[str, NDArray[Any]]:
        return self.rank_local_state() | {FACTORS + name: factor for name, factor in self.factors().items()}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Put back what `state` returned; a state without PowerSGD's arrays makes it forget.

        Raises:
            UsageError: arrays are missing, or have other names or shapes.
        """
        saved = saved_arrays(state, {name: array.shape for name, array in self.state().items()})
        if saved is None:
            return self.forget()
        for name in self.errors():
            self.put_error(name, saved[ERRORS + name])
            self.put_factor(name, saved[FACTORS + name])
        return None
