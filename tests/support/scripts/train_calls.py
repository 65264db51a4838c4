"""Calls `hvdtrain.train` several times, as a notebook does, with a task of this script. Prints one line of JSON.

python train_calls.py torch|tensorflow
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import hvdtrain

if sys.argv[1] == "torch":
    import torch

    from hvdtrain.tasks.torch import TorchDigits as Digits

    def net() -> Any:
        layers = torch.nn
        return layers.Sequential(layers.Flatten(), layers.Linear(64, 10))

    untied: Any = torch.Tensor.detach

else:
    import keras

    from hvdtrain.tasks.keras import KerasDigits as Digits  # type: ignore[assignment]

    def net() -> Any:  # its layer is named by Keras, which counts on
        return keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])

    untied = keras.ops.stop_gradient


class Mine(Digits):
    def build_model(self) -> Any:
        return net()


class Infinite(Mine):
    def measure(self, model: Any, batch: Any) -> dict[str, Any]:
        return {"loss": super().measure(model, batch)["loss"] * float("nan")}


class Untied(Mine):
    def measure(self, model: Any, batch: Any) -> dict[str, Any]:
        return {"loss": untied(super().measure(model, batch)["loss"])}


def call(task: type[hvdtrain.Task] = Mine, **config: Any) -> dict[str, Any]:
    return hvdtrain.train(task=task, global_batch_size=32, progress="none", **config)


def refusal(**config: Any) -> str:
    try:
        call(**config)
    except hvdtrain.UsageError as error:
        return f"UsageError: {error.fact}"
    except hvdtrain.HvdtrainError as error:
        return f"HvdtrainError: {error.fact}"
    return ""


if __name__ == "__main__":
    runs = [call(lr=lr, max_steps=3, output_dir=f"lr_{lr}") for lr in (0.001, 0.01)]
    runs.append(call(lr=0.01, max_steps=5, output_dir="lr_0.01"))  # goes on in the same process
    runs.append(call(lr=0.01, max_steps=5, output_dir="whole"))
    Path("own.yaml").write_text("task: __main__:Mine\nlr: x\nglobal_batch_size: 32\n")
    named = hvdtrain.train(config="own.yaml", lr=0.01, dry_run=True)
    refused = [refusal(learning_rate=1), refusal(lr="x"), refusal(task=Infinite, output_dir="bad")]
    refused += [refusal(task=3), refusal(task=Untied, dry_run=True)]
    runs.append(call(max_steps=1, output_dir="after"))
    keys = ("status", "steps", "run_folder", "weights")
    print(json.dumps({"runs": [{k: r[k] for k in keys} for r in runs], "named": named, "refused": refused}))
