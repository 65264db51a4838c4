"""Gradients of several backward passes added up on their rank, then reduced and applied once."""

import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from hvdtrain.errors import UsageError
from hvdtrain.tensorflow.keras_variables import key_of


class SummedPasses:
    """Calls a function with the sum or the mean of every `passes` lists of gradients of the same variables.

    Each rank counts its passes alone, and all ranks make the same number of them: so all reduce in the same pass.

    Args:
        passes: how many backward passes make one update.
        average: whether the sum is divided by `passes`.
    """

    def __init__(self, passes: int, average: bool) -> None:
        self._passes, self._average = passes, average
        self._groups: dict[frozenset[Any], _Sums] = {}
        self._to_come: Counts = []
        self.number = next(_numbers)
        _all.add(self)

    def add(self, gradients: Sequence[Any], variables: Sequence[Any], apply: Callable[[list[Any]], object]) -> None:
        """Add dense gradients (None for None) of these variables and, in the last of their passes, `apply` what has
        come together."""
        keys = [key_of(variable) for variable in variables]
        together = frozenset(keys)
        if together not in self._groups:
            content = ";".join(str(tuple(variable.shape)) for variable in variables)
            self._groups[together] = _Sums(content, self._count_of(content))
        group = self._groups[together]
        totals = [group.total(key, gradient) for key, gradient in zip(keys, gradients, strict=True)]
        for total, gradient in zip(totals, gradients, strict=True):
            if gradient is not None:
                total.assign_add(gradient)
        done = group.done.assign_add(1)

        def update() -> Any:
            share = self._passes if self._average else 1
            apply([None if total is None else total / tf.cast(share, total.dtype) for total in totals])
            for total in totals:
                if total is not None:
                    total.assign(tf.zeros_like(total))
            return tf.constant(True)

        tf.cond(tf.equal(done % self._passes, 0), update, lambda: tf.constant(False))

    def kept(self) -> "KeptPasses":
        """A copy of what has come together so far, and the count of passes of each group."""
        return [(int(group.done), group.kept()) for group in self._groups.values()]

    def go_back(self, kept: "KeptPasses") -> None:
        """To what `kept` has returned before. Groups that have come since then begin anew."""
        later: KeptPasses = [(0, {})] * (len(self._groups) - len(kept))
        for group, (done, totals) in zip(self._groups.values(), [*kept, *later], strict=True):
            group.assign(done, totals)

    @property
    def counts(self) -> "Counts":
        return [(group.content, int(group.done) % self._passes) for group in self._groups.values()]

    def go_on(self, counts: "Counts") -> None:
        """Count as the rank with these `counts`. This rank's sums of a group that has counted otherwise begin anew."""
        self._to_come = list(counts)
        for group in self._groups.values():
            count = self._count_of(group.content)
            group.assign(count, group.kept() if int(group.done) % self._passes == count else {})

    def _count_of(self, content: str) -> int:
        """Of the next group of this content, as another rank has counted."""
        for place, (known, count) in enumerate(self._to_come):
            if known == content:
                del self._to_come[place]
                return count
        return 0


KeptPasses = list[tuple[int, dict[Any, Any]]]
"""For each group its count, and the sums by their variables."""
Counts = list[tuple[str, int]]
"""For each group its variables' shapes, and the passes since its last update."""

_numbers: Final = itertools.count()
_all: Final[weakref.WeakSet[SummedPasses]] = weakref.WeakSet()


def all_passes() -> dict[int, SummedPasses]:
    """Those of this process, by numbers which are the same on all ranks that make them in the same order."""
    return {passes.number: passes for passes in sorted(_all, key=lambda passes: passes.number)}


class _Sums:
    """Of the variables that are given together: a counter of passes, and a sum for each that has had a gradient."""

    def __init__(self, content: str, done: int) -> None:
        self.content = content
        with tf.init_scope():
            self.done = tf.Variable(done, trainable=False, dtype=tf.int64, name="hvdtrain_passes")
        self._totals: dict[Any, Any] = {}

    def kept(self) -> dict[Any, Any]:
        return {key: total.numpy() for key, total in self._totals.items()}

    def assign(self, done: int, totals: Mapping[Any, Any]) -> None:
        self.done.assign(done)
        for key, total in self._totals.items():
            total.assign(totals[key] if key in totals else tf.zeros_like(total))

    def total(self, key: Any, gradient: Any) -> Any:
        """None where no pass has had a gradient so far."""
        if key not in self._totals and gradient is not None:
            with tf.init_scope():
                zeros = tf.zeros(gradient.shape, gradient.dtype)
                self._totals[key] = tf.Variable(zeros, trainable=False, name="hvdtrain_summed_gradient")
        return self._totals.get(key)


class LocalGradientAggregationHelper:
    """Refused: it serves TensorFlow 1's optimizers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002 (Horovod's arguments)
        raise UsageError(
            "hvd.LocalGradientAggregationHelper adds up gradients for TensorFlow 1's optimizers.",
            "Keras 3's optimizers do not call it.",
            "use hvd.DistributedOptimizer(optimizer, backward_passes_per_step=...).",
        )
