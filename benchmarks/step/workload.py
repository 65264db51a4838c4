"""What every arm trains on: the same weights at the start, the same fixed batch on each worker, the same loss.

The batch is hvdtrain's first one of an epoch; hand-written arms ask its plan for their part, so that losses can be
compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_sharding import ShardPlan

RECORDS = 4096
SEED = 42
LR = 0.001
CLASSES = 10
WIDTH = 1024
LAYERS = 20
IMAGENET_SIDE = 224
"""For pictures of this size ResNet-18 gets its own stem (7×7, stride 2, pooling). Ours are smaller, so that there is
much to exchange for what is computed: 45 MB of gradients in a step of 0.1 s. hvdtrain's stem for small pictures would
compute six times as long, and hide what is compared."""


@dataclass(frozen=True)
class Model:
    """One network.

    Attributes:
        label: for people.
        batch: records a worker.
        shape: of one record's features.
        counts: steps to warm up, steps of an iteration, iterations.
    """

    label: str
    batch: int
    shape: tuple[int, ...]
    counts: tuple[int, int, int]


MODELS = {
    "resnet18": Model("ResNet-18, 32×32, batch 16", 16, (32, 32, 3), (5, 10, 4)),
    "linear20": Model("20 × Linear(1024), batch 16", 16, (WIDTH,), (5, 10, 6)),
    "mlp": Model("tiny MLP, batch 16", 16, (64,), (50, 100, 10)),
    "resnet50": Model("ResNet-50, 224×224, batch 128", 128, (IMAGENET_SIDE, IMAGENET_SIDE, 3), (20, 20, 5)),
}


def inputs(name: str, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Features of records: float32 [n, *shape], noise that belongs to the record."""
    shape = MODELS[name].shape
    return np.stack([np.random.default_rng(record).standard_normal(shape, np.float32) for record in ids.tolist()])


def labels(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64 [n], 0 to CLASSES - 1."""
    return ids % CLASSES


def own_ids(name: str, rank: int, size: int) -> NDArray[np.int64]:
    """The records of this worker's fixed batch."""
    plan = ShardPlan(RECORDS, MODELS[name].batch * size, SEED, 0)
    return plan.shard(rank, size, 0).ids
