"""Data-parallel training on Horovod for PyTorch and TensorFlow/Keras 3.

    class MyTask(hvdtrain.Task): ...        what to train: see `hvdtrain.task`
    import hvdtrain.keras as hvd            make a plain Keras 3 `model.fit` distributed

Nothing is imported until it is used: the installer needs this package before its dependencies are there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hvdtrain.version import __version__

if TYPE_CHECKING:
    from hvdtrain.task import Splits, Task, TaskDefaults

__all__ = ["Splits", "Task", "TaskDefaults", "__version__"]


def __getattr__(name: str) -> Any:
    if name in ("Splits", "Task", "TaskDefaults"):
        from hvdtrain import task

        return vars(task)[name]
    raise AttributeError(f"module 'hvdtrain' has no attribute {name!r}")
