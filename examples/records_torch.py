"""A plan in a torch loop of your own, which can stop anywhere: python records_torch.py DIR STATE.json [STOP_AFTER]

In a real job each process passes its own rank and size, and sums gradients; rank 0 saves the state beside the weights.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from data_sharding import Catalog, RecordReader, ShardLoader, ShardPlan
from data_sharding.example import decode


def arrays(records):
    rows = [decode(record) for record in records]
    return {"x": np.stack([row["x"] for row in rows]), "y": np.concatenate([row["y"] for row in rows])}


if __name__ == "__main__":
    folder, place, stop_after = Path(sys.argv[1]), Path(sys.argv[2]), int((*sys.argv, 10**9)[3])
    catalog = Catalog.index(sorted(folder.glob("train-*.tfrecord")))
    plan = ShardPlan.for_catalog(catalog, global_batch=32, seed=0, epoch=0)
    model = torch.nn.Linear(13, 3)
    optimizer, updates = torch.optim.SGD(model.parameters(), lr=0.1), 0
    with RecordReader(catalog) as reader, ShardLoader(plan, reader, arrays, rank=0, size=1) as loader:
        if place.exists():
            loader.load_state_dict(json.loads(place.read_text()))  # which any number of ranks may have saved
        for epoch in range(loader.plan.epoch, 3):
            for batch in loader:
                x, y = (torch.from_numpy(batch.features[name]) for name in "xy")
                losses = torch.nn.functional.cross_entropy(model(x), y, reduction="none")
                loss = (losses * torch.from_numpy(batch.weights)).sum() / batch.global_weight
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                updates += 1
                place.write_text(json.dumps(loader.state_dict()))
                if updates == stop_after:
                    print(f"stopped in epoch {epoch}, step {batch.step}")
                    sys.exit()
    print(f"{updates} updates in this run")
