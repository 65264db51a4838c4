"""Trains a model three times with --deterministic, the third time with a new adapter on the way: prints JSON,
{"hashes": [[of all arrays after each step], …], "sums_of_three": N}.

Its pictures are so large that TensorFlow's graph optimizer saves memory, and BatchNorm's gradient is a sum of three.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from keras import layers
from keras_options import Rows
from tensorflow.python.eager import context

from data_sharding import LoadedBatch
from hvdtrain.adapters.keras.adapter import KerasAdapter
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.topology import Topology

SAMPLES, STEPS, LR = 8, 6, 0.02
OPTIONS = TrainingOptions(optimizer="sgd", weight_decay=1e-2, deterministic=True)


class Pictures(Rows):
    def build_model(self) -> keras.Model:
        normalized = [layers.BatchNormalization(), layers.ReLU()]
        first = [keras.Input((32, 32, 3)), layers.Conv2D(16, 3, padding="same"), layers.UpSampling2D(8)]
        last = [layers.AveragePooling2D(32), layers.Flatten(), layers.Dense(10)]
        return keras.Sequential([*first, *normalized, layers.BatchNormalization(), layers.ReLU(), *last])


def batch(step: int) -> LoadedBatch:
    random = np.random.default_rng(step)
    pictures = random.normal(size=(SAMPLES, 32, 32, 3)).astype(np.float32)
    features = {"x": pictures, "y": random.integers(0, 10, SAMPLES)}
    return LoadedBatch(step, np.arange(SAMPLES), np.ones(SAMPLES, np.float32), features, float(SAMPLES))


def opened() -> KerasAdapter:
    keras.backend.clear_session()
    return KerasAdapter(Pictures(), Topology.single(), 3, LR, OPTIONS)


def hashed(adapter: Any) -> str:
    state = adapter.state()
    return hashlib.sha256(b"".join(state[name].tobytes() for name in sorted(state))).hexdigest()


def trained(resumed_at: int | None) -> list[str]:
    """The hash after each step."""
    adapter, hashes = opened(), []
    for step in range(STEPS):
        if step == resumed_at:
            state = adapter.state()
            adapter = opened()
            adapter.load_state(state)
        adapter.train_step(batch(step), step, LR)
        hashes.append(hashed(adapter))
    return hashes


def main() -> None:
    with context.collect_graphs() as graphs:
        hashes = [trained(None), trained(None), trained(STEPS // 2)]
    sums = [n for graph in graphs for n in graph.node if n.op == "AddN" and len(n.input) > 2]
    print(json.dumps({"hashes": hashes, "sums_of_three": len(sums)}))


if __name__ == "__main__":
    main()
