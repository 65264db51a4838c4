"""Gradient accumulation: one worker's part of a global batch, cut so that the memory of a smaller batch is enough."""

from __future__ import annotations

import numpy as np

from data_sharding import LoadedBatch


def micro_batches(batch: LoadedBatch, count: int) -> list[LoadedBatch]:
    """`count` parts of `batch` in its order, as equal as can be; sizes differ by one at most.

    Each keeps the global batch's weight, so that its samples' shares in the mean are those they have in the whole: the
    gradients of the parts add up to that of the whole, in an epoch's short last step and with damaged records too.
    """
    if count == 1:
        return [batch]
    ends = np.linspace(0, len(batch.ids), count + 1).astype(int).tolist()
    return [_part(batch, slice(start, end)) for start, end in zip(ends, ends[1:], strict=False)]


def _part(batch: LoadedBatch, rows: slice) -> LoadedBatch:
    features = {name: array[rows] for name, array in batch.features.items()}
    return batch._replace(ids=batch.ids[rows], weights=batch.weights[rows], features=features)
