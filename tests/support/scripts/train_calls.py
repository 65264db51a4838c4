"""Calls `hvdtrain.train` several times, as a notebook does, with a task of this script. Prints one line of JSON.

python train_calls.py torch|tensorflow
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import hvdtrain
from hvdtrain.weights.weight_files import read_run

if sys.argv[1] == "torch":
    import torch

    from hvdtrain.tasks.torch import TorchDigits as Digits

    def net() -> Any:
        layers = torch.nn
        return layers.Sequential(layers.Flatten(), layers.Linear(64, 10))

    untied: Any = torch.Tensor.detach

    def weights_of(model: Any) -> list[Any]:
        return [tensor.numpy() for tensor in model.state_dict().values()]

else:
    import keras

    from hvdtrain.tasks.keras import KerasDigits as Digits  # type: ignore[assignment]

    def net() -> Any:  # its layer is named by Keras, which counts on
        return keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])

    untied = keras.ops.stop_gradient

    def weights_of(model: Any) -> list[Any]:
        return [np.asarray(array) for array in model.get_weights()]


class Mine(Digits):
    def build_model(self) -> Any:
        return net()


class Infinite(Mine):
    def measure(self, model: Any, batch: Any) -> dict[str, Any]:
        return {"loss": super().measure(model, batch)["loss"] * float("nan")}


class Untied(Mine):
    def measure(self, model: Any, batch: Any) -> dict[str, Any]:
        return {"loss": untied(super().measure(model, batch)["loss"])}


def call(task: type[hvdtrain.Task] = Mine, **config: Any) -> hvdtrain.TrainResult:
    return hvdtrain.train(task=task, global_batch_size=32, progress="none", **config)


def facts(result: hvdtrain.TrainResult) -> dict[str, Any]:
    """What the result of the run says of itself, and whether its model has the weights of its last checkpoint."""
    lengths = {len(column) for column in result.history.values()}
    given = sum(float(abs(values).sum()) for values in weights_of(result.model("last")))
    saved = read_run(result.run_folder).state
    kept = sum(float(abs(array).sum()) for name, array in saved.items() if name.startswith("model/"))
    page = result.report()
    html = page._repr_html_()
    return {
        "rows": lengths == {len(result.history["split"])},
        "splits": sorted(set(result.history["split"])),
        "same": abs(given - kept) < 1e-6 * kept,
        "page": page.path.name,
        "framed": html.startswith("<iframe srcdoc=") and "&lt;!DOCTYPE html&gt;" in html,
        "metrics": result.metrics == result["metrics"],
    }


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
    told = {
        "runs": [{k: r[k] for k in keys} for r in runs],
        "named": named,
        "refused": refused,
        "facts": facts(runs[-1]),
    }
    print(json.dumps(told))
