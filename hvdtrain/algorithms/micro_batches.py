"""Gradient accumulation: one worker's part of a global batch in micro batches, which need less memory; their seeds."""

from collections.abc import Iterable
from typing import Final

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
    return cut_batch(batch, map(slice, ends, ends[1:]))


def cut_batch(batch: LoadedBatch, parts: Iterable[slice]) -> list[LoadedBatch]:
    """The rows of each part, with the global batch's weight."""
    return [
        batch._replace(
            ids=batch.ids[part],
            weights=batch.weights[part],
            features={name: array[part] for name, array in batch.features.items()},
        )
        for part in parts
    ]


def count_for_fewer_workers(count: int, workers: int, asked: int, most: int) -> int:
    """Micro batches of a worker's part of the global batch, where the part has grown because workers are missing.

    None of them then has more records than one had with all workers, and so none needs more memory.

    Args:
        workers: those that are left of `asked`; more of them than that change nothing.
        most: into which the part can be cut, where some models need several records in each.
    """
    return max(count, min(-(-count * asked // workers), most))


ALL_RANKS: Final = -1
"""In the place of a rank, in the seeds of what all ranks draw alike."""


def mix(*numbers: int) -> int:
    """One well-spread 63-bit seed from several numbers (the finalizer of SplitMix64, Steele et al. 2014).

    Random numbers of a step are functions of (seed, rank, step, micro batch), so that nothing about them is saved.
    """
    mixed = 0
    for number in numbers:
        mixed = (mixed ^ number) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed >> 1
