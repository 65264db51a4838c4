"""Sums of measures over samples, in variables that graphs add to: of a rank, or of each of its virtual workers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from hvdtrain.adapters.adapter_protocol import MeasureTotals


class MeasureSums:
    """Args: `rows`: for how many virtual workers there are sums; 1 where there are none."""

    def __init__(self, rows: int = 1) -> None:
        self._nothing = tf.zeros([rows, 2], tf.float64)  # totals, and over how many samples each is
        self._row = tf.Variable(0, trainable=False)
        self._sums: dict[str, tf.Variable] = {}

    def use(self, row: int) -> None:
        """What follows belongs to this virtual worker, counted from this worker's first."""
        self._row.assign(row)

    def create(self, names: Iterable[str]) -> None:
        """Variables must exist before a step is traced."""
        for name in set(names) - self._sums.keys():
            self._sums[name] = tf.Variable(self._nothing, trainable=False)

    def add(self, measures: Mapping[str, Any], real: Any) -> None:
        """To each measure's sum, and to the samples that it is over. Args: `real`: float32[n], 0 or 1."""
        counts = tf.cast(real, tf.float64)
        samples = tf.reduce_sum(counts)
        for name, value in measures.items():
            total = tf.reduce_sum(tf.cast(value, tf.float64) * counts)
            self._sums[name].scatter_nd_add([[self._row]], [tf.stack([total, samples])])

    def begin(self, before: Sequence[MeasureTotals]) -> None:
        """The next totals of the rows are these and what follows, which belong to earlier updates."""
        names = before[0].values
        self.create(names)
        for name in names:
            self._sums[name].assign([[totals.values[name], totals.samples[name]] for totals in before])

    def take(self) -> list[MeasureTotals]:
        """Those of each row since the last call."""
        read = {name: variable.numpy() for name, variable in self._sums.items()}
        for variable in self._sums.values():
            variable.assign(self._nothing)
        totals, samples = (
            [{name: float(rows[row, of]) for name, rows in read.items()} for row in self._rows] for of in (0, 1)
        )
        return [MeasureTotals(*pair) for pair in zip(totals, samples, strict=True)]

    @property
    def _rows(self) -> range:
        return range(self._nothing.shape[0])
