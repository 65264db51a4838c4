"""Data-parallel training on Horovod for PyTorch and TensorFlow/Keras 3.

    class MyTask(hvdtrain.Task): ...        what to train: see `hvdtrain.task`
    hvdtrain.train(task=MyTask, workers=2)  a training, from a notebook or script
    hvdtrain.run(function, np=2)            a function on each of several workers, from a notebook or script
    hvdtrain.evaluate("RUN")                a run's model measured on records; hvdtrain.predict: its predictions
    import hvdtrain.keras as hvd            make a plain Keras 3 `model.fit` distributed

Nothing is imported until it is used: the installer needs this package before its dependencies are there.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any

from hvdtrain.version import __version__

if TYPE_CHECKING:
    from hvdtrain.cli.evaluate_call import evaluate, predict
    from hvdtrain.cli.python_calls.function_call import run
    from hvdtrain.cli.python_calls.train_result import TrainResult
    from hvdtrain.cli.train_call import train
    from hvdtrain.engine import events
    from hvdtrain.errors import HvdtrainError, UsageError
    from hvdtrain.task import Splits, Task, TaskDefaults

__all__ = [
    "HvdtrainError",
    "Splits",
    "Task",
    "TaskDefaults",
    "TrainResult",
    "UsageError",
    "__version__",
    "evaluate",
    "events",
    "predict",
    "run",
    "train",
]


class _Beside:
    """Finds `data_sharding` beside this package, whatever data_sharding.py the working directory has."""

    _FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

    @classmethod
    def find_spec(cls, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [cls._FOLDER]) if name == "data_sharding" else None


sys.meta_path.insert(0, _Beside)

_MODULES = {
    "HvdtrainError": "hvdtrain.errors",
    "UsageError": "hvdtrain.errors",
    "Splits": "hvdtrain.task",
    "Task": "hvdtrain.task",
    "TaskDefaults": "hvdtrain.task",
    "TrainResult": "hvdtrain.cli.python_calls.train_result",
    "evaluate": "hvdtrain.cli.evaluate_call",
    "events": "hvdtrain.engine.events",
    "predict": "hvdtrain.cli.evaluate_call",
    "run": "hvdtrain.run",
    "train": "hvdtrain.cli.train_call",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'hvdtrain' has no attribute {name!r}")
    module = import_module(_MODULES[name])
    globals()[name] = found = module if name in ("events", "run") else getattr(module, name)  # looked up once
    return found
