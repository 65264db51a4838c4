"""Sparse gradients in Keras: rows of embeddings are gathered from all ranks as they are, and added up afterwards."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvdtrain.adapters.choose_sync import ChosenSync, no_sparse_gradients
from hvdtrain.adapters.keras.gradient_sync import GradientSync, NoSync, SummedGradients
from hvdtrain.adapters.keras.graph_clock import Waiting


class SparseGradients(GradientSync):
    """The gradient sync of --sparse-gradients allgather.

    With one process sparse gradients remain sparse too, so that it trains as many processes do.

    Which gradients are `tf.IndexedSlices` is known when the step is traced, and the same on all ranks; each rank may
    have touched other rows. The optimizer gets each row once: for rules that square gradients, twice would be wrong.
    """

    def __init__(self, chosen: ChosenSync, waiting: Waiting) -> None:
        super().__init__()
        alone = chosen.ranks == 1
        self._others: GradientSync = NoSync() if alone else SummedGradients((), chosen, waiting)
        self._gather, self._waiting = (lambda tensor, _name: tensor) if alone else _gather, waiting

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """See `GradientSync`. Raises `UsageError`: on all ranks: no gradient is sparse."""
        sparse = [place for place, gradient in enumerate(gradients) if isinstance(gradient, tf.IndexedSlices)]
        if not sparse:
            raise no_sparse_gradients("keras.layers.Embedding").on_all_ranks()
        dense = [None if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in gradients]
        reduced = self._others.reduce(dense, variables)
        for place in sparse:
            reduced[place] = self._summed(gradients[place], tuple(variables[place].shape), place)
        return reduced

    def _summed(self, rows: Any, shape: tuple[int, ...], place: int) -> Any:
        local = [tf.cast(rows.indices, tf.int64), rows.values]
        names = [f"hvdtrain_rows_{place}_{part}" for part in ("indices", "values")]
        indices, values = self._waiting.over(local, lambda: list(map(self._gather, local, names)))
        touched, positions = tf.unique(indices, out_idx=tf.int64)
        summed = tf.math.unsorted_segment_sum(values, positions, tf.size(touched, out_type=tf.int64))
        return tf.IndexedSlices(summed, touched, tf.constant(shape, tf.int64))


def _gather(tensor: Any, name: str) -> Any:
    """All ranks' rows of a tensor, joined under a name. Called while a step is traced."""
    import horovod.tensorflow as hvd

    return hvd.allgather(tensor, name=name, ignore_name_scope=True)
