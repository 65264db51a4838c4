"""The parts of a step's batch that are computed one after the other: micro batches, or those of virtual workers."""

from typing import NamedTuple

from data_sharding import LoadedBatch
from hvdtrain.algorithms.micro_batches import cut_batch, micro_batches
from hvdtrain.topology.virtual_workers import VirtualWorkers


class MicroBatch(NamedTuple):
    batch: LoadedBatch
    worker: int  # the rank, or the virtual worker
    number: int = 0  # of the worker's micro batches in this step
    row: int = 0  # of a virtual worker among this worker's own


def in_micro_batches(batch: LoadedBatch, count: int, rank: int) -> list[MicroBatch]:
    """`count` parts of what a rank has."""
    return [MicroBatch(part, rank, number) for number, part in enumerate(micro_batches(batch, count))]


def of_workers(batch: LoadedBatch, workers: VirtualWorkers) -> list[MicroBatch]:
    """The part of each of this worker's virtual workers."""
    parts = enumerate(zip(cut_batch(batch, workers.slots), workers.own, strict=True))
    return [MicroBatch(part, worker, row=row) for row, (part, worker) in parts]
