"""Two ranks train; rank 1 raises in its second epoch. Rank 0 must end by itself."""

from __future__ import annotations

from typing import Any

import keras
import keras_fit_cases as cases
import keras_fit_checks as checks

import hvdtrain.keras as hvd


class Fails(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        if hvd.rank() == 1 and epoch == 1:
            raise RuntimeError("rank 1 gives up")


if __name__ == "__main__":
    hvd.init()
    model = checks.compiled(cases.Case(lambda: keras.optimizers.SGD(0.05)))
    checks.fit(model, callbacks=[*checks.broadcast(), Fails()], epochs=1000)
    print("TRAINED TO THE END")
