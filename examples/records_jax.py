"""A plan in a JAX loop of your own, which can stop anywhere: python records_jax.py DIR STATE.json [STOP_AFTER]

In a real job each process passes jax.process_index() and jax.process_count(), and psums gradients.
"""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from data_sharding import Catalog, RecordReader, ShardLoader, ShardPlan
from data_sharding.example import decode


def arrays(records):
    rows = [decode(record) for record in records]
    return {"x": np.stack([row["x"] for row in rows]), "y": np.concatenate([row["y"] for row in rows])}


@jax.jit
def update(weights, x, y, sample_weights, global_weight):
    def loss(weights):
        scores = jax.nn.log_softmax(x @ weights)
        return -(scores[jnp.arange(len(y)), y] * sample_weights).sum() / global_weight

    return weights - 0.1 * jax.grad(loss)(weights)


if __name__ == "__main__":
    folder, place, stop_after = Path(sys.argv[1]), Path(sys.argv[2]), int((*sys.argv, 10**9)[3])
    catalog = Catalog.index(sorted(folder.glob("train-*.tfrecord")))
    plan = ShardPlan.for_catalog(catalog, global_batch=32, seed=0, epoch=0)
    weights, updates = jnp.zeros((13, 3)), 0
    with RecordReader(catalog) as reader, ShardLoader(plan, reader, arrays, rank=0, size=1) as loader:
        if place.exists():
            loader.load_state_dict(json.loads(place.read_text()))  # which any number of ranks may have saved
        for epoch in range(loader.plan.epoch, 3):
            for batch in loader:
                weights = update(weights, *(batch.features[name] for name in "xy"), batch.weights, batch.global_weight)
                updates += 1
                place.write_text(json.dumps(loader.state_dict()))
                if updates == stop_after:
                    print(f"stopped in epoch {epoch}, step {batch.step}")
                    sys.exit()
    print(f"{updates} updates in this run")
