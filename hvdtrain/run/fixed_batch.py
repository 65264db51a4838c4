"""One batch for measurements, which train on it again and again."""

import numpy as np

from data_sharding import LoadedBatch
from hvdtrain.run.prepare import RunSetup


def fixed_batch(setup: RunSetup) -> LoadedBatch:
    """This rank's slice of the first global batch; every slot counts, also those that a small data set fills twice."""
    with setup.train.loader(0, 0) as loader:
        batch: LoadedBatch = next(iter(loader))
    weights = np.ones(len(batch.ids), np.float32)
    batch_size = setup.config.global_batch_size
    if batch_size is None:
        raise ValueError("with_defaults has not been applied")
    return batch._replace(weights=weights, global_weight=float(batch_size))
