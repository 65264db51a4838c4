"""A run's task, built again from what its checkpoint says of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from data_sharding import RecordReader
from data_sharding.errors import ShardingError
from data_sharding.storage import is_remote
from hvdtrain.data.tensor_decode import TensorDecode
from hvdtrain.errors import UsageError
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.splits import validation_sets
from hvdtrain.task.task import Features, Task
from hvdtrain.tasks.task_registry import build_task, load_task
from hvdtrain.user_cache import user_cache

_SAMPLES: Final = 2  # exporters take an axis of length 1 for one that never grows


def rebuilt_task(about: Mapping[str, Any], framework: str, kind: type[Task] | None = None) -> Task:
    """The task with the arguments that it was trained with, in either framework; `kind` is its class, where that cannot
    be found by its name.

    Raises `UsageError`: the task is not there, or not in this framework; or there was none.
    """
    name = task_named(about)
    if ":" in name and framework != about["framework"]:
        raise UsageError(
            f"{name} is a {about['framework']} task of your own.",
            f"This format is {framework}'s, and hvdtrain does not know the model there.",
            f"choose a format of {about['framework']}, or safetensors, which both can read.",
        )
    if kind is None:
        kind = load_task(name, framework)
    return build_task(kind, {**about.get("task_args", {}), **about.get("found", {})})


def task_named(about: Mapping[str, Any]) -> str:
    """What `hvdtrain train` was given as --task. Raises `UsageError`: the checkpoint is of a loop of somebody's own."""
    if "task" not in about:
        raise UsageError(
            "This checkpoint was saved by hvd.Checkpoint.",
            "It holds the state of a loop of your own, whose model hvdtrain cannot build.",
            "load it in your program by Checkpoint.restore(), or write its weights to a file: hvdtrain export "
            "--format safetensors.",
        )
    return str(about["task"])


def built_model(task: Task) -> Any:
    """The task's model. Raises `UsageError` if it cannot be built, which may be for want of the data."""
    try:
        return task.build_model()
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"{type(task).__name__}.build_model() failed: {type(error).__name__}: {error}.",
            "It may need what open_data() finds out.",
            "give the folder of the data as --data-dir DIR, or let the task say it as `found`.",
        ) from error


def example_features(task: Task, about: Mapping[str, Any], data_dir: str | None) -> Features:
    """Arrays of a few samples as the task's decode() gives them: the task's own example, or records of its data.

    Args:
        task: just built; its data are opened unless it has an example.
        about: the checkpoint's manifest, which says where the data were.
        data_dir: where they are now; None: there still.

    Raises `UsageError`: the task has no example, and the data are not there.
    """
    features = task.example()
    if features is not None:
        return features
    try:
        splits = task.open_data(data_access(about, data_dir))
        catalog = next(iter(validation_sets(splits.validation, "").values()), splits.train)
        with RecordReader(catalog) as reader:
            return TensorDecode(task)(reader.load(np.arange(min(_SAMPLES, len(catalog)))))
    except (UsageError, ShardingError) as error:
        raise UsageError(
            f"{type(task).__name__} has no example(), and its data cannot be opened: {error.fact}",
            "So it is not known what the model takes.",
            "give the folder of the data as --data-dir DIR, or export weights alone (safetensors, state-dict).",
        ) from error


def data_access(about: Mapping[str, Any], data_dir: str | None) -> DataAccess:
    """The run's data, as a task is given them."""
    folder = data_dir or about.get("config", {}).get("data", {}).get("dir")
    if folder is not None and not is_remote(folder):
        folder = str(Path(folder).expanduser().absolute())
    return DataAccess(folder, user_cache() / "data")
