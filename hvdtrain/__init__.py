"""Data-parallel training on Horovod for PyTorch and TensorFlow/Keras 3.

    class MyTask(hvdtrain.Task): ...        what to train: see `hvdtrain.task`
    hvdtrain.train(task=MyTask, epochs=3)   a training in one process, from a notebook or script
    import hvdtrain.keras as hvd            make a plain Keras 3 `model.fit` distributed

Nothing is imported until it is used: the installer needs this package before its dependencies are there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hvdtrain.version import __version__

if TYPE_CHECKING:
    from hvdtrain.errors import HvdtrainError, UsageError
    from hvdtrain.task import Splits, Task, TaskDefaults
    from hvdtrain.train_call import train

__all__ = ["HvdtrainError", "Splits", "Task", "TaskDefaults", "UsageError", "__version__", "train"]


def __getattr__(name: str) -> Any:
    if name in ("Splits", "Task", "TaskDefaults"):
        from hvdtrain import task

        return vars(task)[name]
    if name in ("HvdtrainError", "UsageError"):
        from hvdtrain import errors

        return vars(errors)[name]
    if name == "train":
        from hvdtrain.train_call import train

        return train
    raise AttributeError(f"module 'hvdtrain' has no attribute {name!r}")
