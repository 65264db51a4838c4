"""Trains a Keras model with dropout and BatchNorm on the rows of FOLDER, whole and resumed at every step.

Prints JSON: {"steps": [...], "different": {step: [names]}, "outcomes_differ": [steps], "foreign": [modules]}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from support.numpy_training import CLASSES, WIDTH, Data, NumpyTask, Run, Setting, decode_rows, train

from data_sharding import Catalog
from hvdtrain.adapters.keras.adapter import KerasAdapter
from hvdtrain.checkpoints.format import Checkpoint, read_checkpoint
from hvdtrain.comm.communicator import Communicator, SerialCommunicator
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.engine.limits import RunLimits
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.splits import Splits
from hvdtrain.task.task import Features, Task
from hvdtrain.topology import Topology


class KerasRows(Task):
    framework: ClassVar[str] = "tensorflow"

    def open_data(self, data: DataAccess) -> Splits:
        return NumpyTask().open_data(data)

    def decode(self, records: Sequence[bytes]) -> Features:
        return decode_rows(records)

    def build_model(self) -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((WIDTH,)),
                layers.Dense(16, name="hidden"),
                layers.BatchNormalization(name="norm"),
                layers.Dropout(0.3, name="dropout"),
                layers.Dense(CLASSES, name="logits"),
            ]
        )

    def build_optimizer(self, model: keras.Model, lr: float) -> keras.optimizers.Optimizer:  # noqa: ARG002
        return keras.optimizers.Adam(lr)

    def measure(self, model: keras.Model, batch: Mapping[str, Any]) -> dict[str, Any]:
        logits = model(batch["x"])
        return {"loss": tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch["label"], logits=logits)}


def open_keras(task: Task, comm: Communicator, seed: int) -> KerasAdapter:
    return KerasAdapter(task, comm.topology, seed, 0.01, TrainingOptions())


def run(setting: Setting, start: Checkpoint | None) -> Run:
    keras.utils.clear_session()  # else names of layers would count on, as they do not in a new process
    limits = RunLimits(2, log_interval=1, checkpoint_interval=1)
    position, state = (start.position, start.state) if start else (None, None)
    return train(setting, SerialCommunicator(Topology.single()), limits, position, state)


def main(folder: Path) -> None:
    catalogs = [Catalog.index(folder / f"{split}-*.tfrecord") for split in ("train", "validation")]
    out = Path(sys.argv[2])
    setting = Setting(Data(folder, *catalogs), out, open_adapter=open_keras, task=KerasRows())
    whole = run(setting, None)
    state = whole.adapter.state()
    again = whole.adapter.state({name: np.zeros_like(array) for name, array in state.items()})
    if any(array.tobytes() != state[name].tobytes() for name, array in again.items()):
        raise AssertionError("a copy into an earlier one's memory is another state")
    view = whole.adapter.view_state()
    if view.keys() != state.keys() or any(array.tobytes() != state[name].tobytes() for name, array in view.items()):
        raise AssertionError("a view of the state is another state")
    different: dict[int, list[str]] = {}
    outcomes: list[int] = []
    paths = setting.store().paths()
    for path in paths:
        saved = read_checkpoint(path)
        resumed = run(replace(setting, folder=out / path.name), saved)
        other = resumed.adapter.state()
        names = [name for name in state.keys() | other.keys() if name not in state or name not in other]
        names += [name for name in state.keys() & other.keys() if state[name].tobytes() != other[name].tobytes()]
        if names:
            different[saved.position.step] = sorted(names)
        if resumed.outcome != whole.outcome:
            outcomes.append(saved.position.step)
    foreign = sorted({"torch", "horovod"} & set(sys.modules))
    steps = [int(path.name.removeprefix("step_")) for path in paths]
    print(json.dumps({"steps": steps, "different": different, "outcomes_differ": outcomes, "foreign": foreign}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
