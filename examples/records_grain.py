"""The steps of a plan in grain, which can stop anywhere: python records_grain.py DIR STATE.json [STOP_AFTER]

In a real job each process passes its own rank and size. Batches are numpy arrays, as JAX and Flax take them.
"""

import json
import sys
from pathlib import Path

import grain
import numpy as np

from data_sharding import Catalog, RecordReader, ShardPlan
from data_sharding.adapters.grain import PlanSource
from data_sharding.example import decode


def arrays(records):
    rows = [decode(record) for record in records]
    return {"x": np.stack([row["x"] for row in rows]), "y": np.concatenate([row["y"] for row in rows])}


if __name__ == "__main__":
    folder, place, stop_after = Path(sys.argv[1]), Path(sys.argv[2]), int((*sys.argv, 10**9)[3])
    catalog = Catalog.index(sorted(folder.glob("train-*.tfrecord")))
    plan = ShardPlan.for_catalog(catalog, global_batch=32, seed=0, epoch=0)
    with RecordReader(catalog) as reader:
        steps = grain.MapDataset.source(PlanSource(plan, reader, arrays, rank=0, size=1, epochs=3))
        batches, updates = iter(steps.to_iter_dataset()), 0
        if place.exists():
            batches.set_state(json.loads(place.read_text()))  # which any number of ranks may have saved
        for batch in batches:
            seen = batch.features["x"][batch.weights > 0]  # train on it here
            updates += 1
            place.write_text(json.dumps(batches.get_state()))
            if updates == stop_after:
                print(f"stopped after step {batch.step} with {len(seen)} records")
                sys.exit()
    print(f"{updates} updates in this run")
