"""A plan as a tf.data.Dataset, which can stop anywhere: python records_tfdata.py DIR STATE.json [STOP_AFTER]

In a real job each process passes its own rank and size. The state is a step of the plan, not one of TensorFlow's
iterators, so that any number of ranks can go on from it.
"""

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from data_sharding import Catalog, RecordReader, ShardPlan, plan_at, state_at
from data_sharding.adapters.tensorflow import as_tf_dataset
from data_sharding.example import decode


def arrays(records):
    rows = [decode(record) for record in records]
    return {"x": np.stack([row["x"] for row in rows]), "y": np.concatenate([row["y"] for row in rows])}


if __name__ == "__main__":
    folder, place, stop_after = Path(sys.argv[1]), Path(sys.argv[2]), int((*sys.argv, 10**9)[3])
    catalog = Catalog.index(sorted(folder.glob("train-*.tfrecord")))
    plan, step, updates = ShardPlan.for_catalog(catalog, global_batch=32, seed=0, epoch=0), 0, 0
    if place.exists():
        plan, step = plan_at(plan, json.loads(place.read_text()))  # which any number of ranks may have saved
    weights = tf.Variable(tf.zeros([13, 3]))
    with RecordReader(catalog) as reader:
        for epoch in range(plan.epoch, 3):
            plan = ShardPlan.for_catalog(catalog, global_batch=32, seed=0, epoch=epoch)
            for batch in as_tf_dataset(plan, reader, arrays, rank=0, size=1, start_step=step):
                with tf.GradientTape() as tape:
                    scores = batch.features["x"] @ weights
                    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch.features["y"], scores)
                    loss = tf.reduce_sum(losses * batch.weights) / batch.global_weight
                weights.assign_sub(0.1 * tape.gradient(loss, weights))
                updates += 1
                place.write_text(json.dumps(state_at(plan, int(batch.step) + 1)))
                if updates == stop_after:
                    print(f"stopped in epoch {epoch}, step {int(batch.step)}")
                    sys.exit()
            step = 0
    print(f"{updates} updates in this run")
