"""The digits in Keras, with a fault on one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import horovod.tensorflow as hvd
import keras
from train_fault import fail, fail_in_average, slow, slow_disk, strikes

from hvdtrain import events
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.splits import Splits
from hvdtrain.task.task import Features
from hvdtrain.tasks.keras import KerasDigits

fail("import")
slow_disk()


class Faulty(KerasDigits):
    """Fails as TRAIN_FAULT says. Keras calls measure only a few times: once by hand, then to trace each graph."""

    def open_data(self, data: DataAccess) -> Splits:
        slow("open_data")
        return super().open_data(data)

    def decode(self, records: Sequence[bytes]) -> Features:
        fail("decode")
        slow("decode")
        return super().decode(records)

    def build_model(self) -> keras.Model:
        fail("build_model")
        fail_in_average(hvd, "allreduce")
        return super().build_model()

    def measure(self, model: keras.Model, batch: Mapping[str, Any]) -> dict[str, Any]:
        fail("measure")
        return super().measure(model, batch)


class Diverging(KerasDigits):
    """Rank 1 changes one weight behind everybody's back, after an update."""

    def build_model(self) -> keras.Model:
        self._model = super().build_model()
        return self._model

    def callbacks(self) -> Sequence[Callable[[Any], None]]:
        return [self._after]

    def _after(self, event: Any) -> None:
        if isinstance(event, events.StepEnded) and strikes("weights") == "change":
            weights = self._model.trainable_variables[0]
            values = weights.numpy()
            values.reshape(-1)[0] += 1e-3
            weights.assign(values)
