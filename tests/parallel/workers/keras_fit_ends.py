"""Fits whose ranks do not do the same, and callbacks that write files; what each rank sees, as JSON: `… FOLDER`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

import hvdtrain.keras as hvd
from hvdtrain.errors import UsageError

FOLDER = Path(sys.argv[1])


def model() -> Any:
    keras.utils.set_random_seed(hvd.rank())
    made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
    made.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    return made


def batches(count: int) -> Iterator[tuple[Any, Any]]:
    for _ in range(count):
        yield np.full((4, 3), 0.1, np.float32), np.ones((4, 1), np.float32)


def fitted(data: Any, *more: Any, averaged: bool = True, **options: Any) -> dict[str, Any]:
    """How many batches this rank trained, how its fit ended, and after how many seconds."""
    trained = model()
    counted: list[int] = []
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: counted.append(batch))  # noqa: ARG005
    average = [hvd.callbacks.MetricAverageCallback()] if averaged else []
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), *average, *more, count]
    began, ended, history = time.monotonic(), "", {}
    try:
        history = trained.fit(data, verbose=0, callbacks=callbacks, **options).history
    except UsageError as error:
        ended = str(error)
    return {
        "steps": int(trained.optimizer.iterations),
        "batches": len(counted),
        "ended": ended,
        "took": time.monotonic() - began,
        "epochs": len(history.get("loss", [])),
        "weights": [float(x) for weight in trained.weights for x in weight.numpy().ravel()],
    }


class StopAfter(keras.callbacks.Callback):
    """Ends the fit on one rank, after a batch or an epoch."""

    def __init__(self, rank: int, batch: int | None = None, epoch: int | None = None) -> None:
        super().__init__()
        self.rank, self.batch, self.epoch = rank, batch, epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        if hvd.rank() == self.rank and batch == self.batch:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        if hvd.rank() == self.rank and epoch == self.epoch:
            self.model.stop_training = True


def array_data() -> tuple[Any, Any]:
    rows = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
    return rows, rows.sum(1, keepdims=True)


def uneven(averaged: bool) -> dict[str, Any]:
    return fitted(batches(3 + hvd.rank()), averaged=averaged)


def validation_of_one() -> dict[str, Any]:
    rows, sums = array_data()
    validation = (rows, sums) if hvd.rank() == 0 else None
    return fitted(rows, y=sums, batch_size=8, validation_data=validation)


def nan_on_one_rank() -> dict[str, Any]:
    rows, sums = array_data()
    if hvd.rank() == 1:
        sums[17] = np.nan
    stop = keras.callbacks.TerminateOnNaN()
    return fitted(rows, stop, y=sums, batch_size=8, shuffle=False, epochs=3)


def stopped(**when: int) -> dict[str, Any]:
    rows, sums = array_data()
    return fitted(rows, StopAfter(1, **when), y=sums, batch_size=8, epochs=3, shuffle=False)


def early_stopped() -> dict[str, Any]:
    """By rank 1 alone, whose loss is best in the first epoch, since more is better; it restores the weights of then."""
    rows, sums = array_data()
    stop = keras.callbacks.EarlyStopping("loss", mode="max", patience=1, restore_best_weights=True)
    return fitted(rows, *[stop] * hvd.rank(), y=sums, batch_size=8, epochs=4, shuffle=False)


def stopped_behind_a_history() -> dict[str, Any]:
    """By a callback behind the place where ranks ask each other."""
    rows, sums = array_data()
    return fitted(rows, keras.callbacks.History(), StopAfter(1, epoch=0), y=sums, batch_size=8, epochs=3)


def shared_file() -> dict[str, Any]:
    rows, sums = array_data()
    return fitted(rows, keras.callbacks.ModelCheckpoint(FOLDER / "shared.keras"), y=sums)


def own_files() -> dict[str, Any]:
    rows, sums = array_data()
    best = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    best.filepath = str(FOLDER / f"best_{hvd.rank()}.keras")
    own = keras.callbacks.ModelCheckpoint(FOLDER / f"own_{hvd.rank()}.keras")
    return fitted(rows, best, own, y=sums)


CHECKS: dict[str, Callable[[], dict[str, Any]]] = {
    "uneven": lambda: uneven(averaged=True),
    "uneven, not averaged": lambda: uneven(averaged=False),
    "validation": validation_of_one,
    "nan": nan_on_one_rank,
    "stopped in an epoch": lambda: stopped(batch=1),
    "stopped at its end": lambda: stopped(batch=3),
    "stopped after an epoch": lambda: stopped(epoch=0),
    "stopped early": early_stopped,
    "stopped behind a history": stopped_behind_a_history,
    "no epochs": lambda: fitted(array_data()[0], y=array_data()[1], epochs=0),
    "shared file": shared_file,
    "own files": own_files,
}

if __name__ == "__main__":
    hvd.init()
    report = {name: check() for name, check in CHECKS.items()}
    Path(FOLDER, f"rank_{hvd.rank()}.json").write_text(json.dumps(report))
