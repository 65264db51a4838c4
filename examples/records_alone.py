"""data_sharding without hvdtrain, in a loop of your own: python records_alone.py DIR

Two workers read one after the other here. In a real job each process passes its own rank.
"""

import sys
from pathlib import Path

import numpy as np

from data_sharding import Catalog, RecordReader, ShardLoader, ShardPlan
from data_sharding.example import decode


def arrays(records):
    rows = [decode(record) for record in records]
    return {"x": np.stack([row["x"] for row in rows]), "y": np.concatenate([row["y"] for row in rows])}


if __name__ == "__main__":
    catalog = Catalog.index(sorted(Path(sys.argv[1]).glob("train-*.tfrecord")))
    plan = ShardPlan.for_catalog(catalog, global_batch=32, seed=0, epoch=0)
    used = []
    with RecordReader(catalog) as reader:
        for rank in range(2):
            with ShardLoader(plan, reader, arrays, rank=rank, size=2) as batches:
                for batch in batches:
                    used += list(batch.ids[batch.weights > 0])
    assert sorted(used) == list(range(len(catalog)))
    print(f"{len(catalog)} records, each used once, by one of two workers")
