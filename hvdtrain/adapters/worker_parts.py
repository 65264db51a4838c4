"""The records of each virtual worker, whichever worker has them."""

import numpy as np

from data_sharding import LoadedBatch
from hvdtrain.algorithms.micro_batches import cut_batch
from hvdtrain.topology.virtual_workers import VirtualWorkers


def parts_of_workers(batch: LoadedBatch, workers: VirtualWorkers) -> list[LoadedBatch]:
    """A worker's batch, cut into those of its virtual workers, in order."""
    parts = cut_batch(batch, workers.slots)
    return [with_own_stand_ins(part) for part in parts] if len(batch.damaged) else parts


def with_own_stand_ins(part: LoadedBatch) -> LoadedBatch:
    """In the place of a damaged record, the reader puts the first sound one of the batch, which depends on the number
    of workers. It weighs nothing, but BatchNorm sees it: so it becomes the virtual worker's own first one, or zeros."""
    damaged = np.isin(part.ids, part.damaged) & (part.weights == 0)
    if not damaged.any():
        return part
    sound = int(np.argmax(part.weights)) if part.weights.any() else None
    features = {name: np.array(array) for name, array in part.features.items()}
    for array in features.values():
        array[damaged] = np.zeros_like(array[0]) if sound is None else array[sound]
    return part._replace(features=features)
