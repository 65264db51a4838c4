"""What the callbacks of an elastic fit keep: epochs and batches that are trained, also of a fit that goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from hvdtrain.keras.elastic import UpdateBatchStateCallback, UpdateEpochStateCallback

STEPS = 4


class Seen(keras.callbacks.Callback):
    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state, self.batches = state, list[int]()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.batches.append(self.state.batch)


def fit(state: Any, **options: Any) -> list[int]:
    """Returns `state.batch` after each batch."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    ones, seen = np.ones((STEPS, 1), np.float32), Seen(state)
    callbacks = [UpdateBatchStateCallback(state), UpdateEpochStateCallback(state), seen]
    model.fit(ones, ones, batch_size=1, verbose=0, callbacks=callbacks, **options)
    return seen.batches


@pytest.mark.parametrize("options", [{"epochs": 3}, {"initial_epoch": 2, "epochs": 5}])
def test_epochs_are_counted_from_0_or_from_the_first_one(options: dict[str, int]) -> None:
    state = SimpleNamespace(batch=0, epoch=2)
    assert fit(state, **options) == [1, 2, 3, 3] * 3  # at the end of the epoch follows 0
    assert (state.batch, state.epoch) == (0, 5)


def test_the_rest_of_an_epoch_goes_on_counting() -> None:
    state = SimpleNamespace(batch=1, epoch=2)
    assert fit(state, epochs=1, steps_per_epoch=STEPS - state.batch) == [2, 3, 3]
    assert (state.batch, state.epoch) == (0, 3)
