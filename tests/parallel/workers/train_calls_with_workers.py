"""Calls `hvdtrain.train(workers=2)` with classes of this script, and without the guard of `__main__`.

python train_calls_with_workers.py results    one line of JSON: what came of several calls
python train_calls_with_workers.py slow       trains until it is stopped, and says how the call ended
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

import hvdtrain
from hvdtrain.tasks.torch import TorchDigits

WIDTH = 10
SECONDS = 0.02


class Mine(TorchDigits):
    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH))


class Paced(Mine):
    def measure(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        time.sleep(SECONDS)
        return super().measure(model, batch)


class Failing(Mine):
    def measure(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        name = type(model).__name__
        raise LookupError(f"a {name} has no use for records of shape {tuple(batch['image'].shape[1:])}")


class Open(Mine):
    held = sys.stdin  # what a process has opened cannot be sent to another one


def call(task: type[hvdtrain.Task], workers: int | None = 2, **config: Any) -> hvdtrain.TrainResult:
    return hvdtrain.train(task=task, workers=workers, global_batch_size=32, progress="none", **config)


def raised(task: Any, **config: Any) -> dict[str, Any]:
    try:
        call(task, **config)
    except Exception as error:
        notes = "\n".join(getattr(error, "__notes__", []))
        return {"kind": type(error).__name__, "text": str(error), "notes": notes}
    return {}


def results() -> dict[str, Any]:
    together, alone = (call(Mine, n, max_steps=6, output_dir=f"by_{n}") for n in (2, None))
    models = [result.model("last").state_dict() for result in (together, alone)]
    distance = max(float((models[0][name] - models[1][name]).abs().max()) for name in models[0])
    rows = [len(result.history["step"]) for result in (together, alone)]
    again = call(Mine, max_steps=6, output_dir="by_2")  # as when a cell of a notebook is executed twice
    return {
        "again": again["weights"] == together["weights"],
        "distance": distance,
        "rows": rows,
        "run_folder": str(together.run_folder),
        "failing": raised(Failing, max_steps=2, output_dir="failing"),
        "open": raised(Open),
    }


def until_stopped() -> None:
    result = call(Paced, epochs=5000, output_dir="out", checkpoint_interval=10)
    print("returned", result["status"])


print(json.dumps(results())) if sys.argv[1] == "results" else until_stopped()
