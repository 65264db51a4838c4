"""A training as a function call, for notebooks, scripts and sweeps: in this process, or by workers of this machine."""

import inspect
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvdtrain.cli.python_calls.own_job import require_alone, require_count
from hvdtrain.cli.python_calls.train_job import train_on_workers
from hvdtrain.cli.python_calls.train_result import TrainResult, result_in
from hvdtrain.cli.train import train_once, with_deadline
from hvdtrain.config.parser import train_config_of
from hvdtrain.config.yaml_file import read_yaml
from hvdtrain.errors import UsageError
from hvdtrain.run.job import load_task_class
from hvdtrain.run.run_folder import close_logs
from hvdtrain.stop_requests import StopSignals
from hvdtrain.task.task import Task
from hvdtrain.topology import detect_topology


def train(
    task: str | type[Task] | None = None, *, config: str | Path | None = None, workers: int | None = None, **keys: Any
) -> TrainResult:
    """Train as `hvdtrain train` does: in this process, or with `workers` by so many processes of this machine.

    An interrupt (Ctrl-C, a notebook's stop button) ends the training with a checkpoint, and this returns. A second one
    ends it at once: workers are killed, and KeyboardInterrupt is raised; without `workers` this process itself ends.

    Args:
        task: a task's name, module:Class, or a class derived from `hvdtrain.Task`, wherever it is defined (default:
            what `config` says, otherwise digits).
        config: a YAML file; `keys` override it.
        workers: as many as `hvdtrain launch local -np`. They get the class itself, so that it may be a notebook's, and
            print into the cell or terminal. None: no other process is started.
        keys: the keys of a config file: lr=0.01, data={"dir": "DIR"}, task_args={"width": 64}.

    Returns:
        result.json's content with "run_folder", and more as attributes; {"status": "checked"} with dry_run=True.

    Raises:
        UsageError: an unknown key or wrong value, data or a task that cannot be used, or this is a worker of a job.
        HvdtrainError: training failed; with `workers`, with the sentences of the worker that has caused it.
        KeyboardInterrupt: with `workers`, as above.
    """
    begin = time.perf_counter()
    task_class = task if inspect.isclass(task) else None
    named = {} if task is None else {"task": _name_of(task)}
    parsed = train_config_of(_over(read_yaml(Path(config)) if config is not None else {}, _plain({**named, **keys})))
    require_alone(detect_topology(os.environ), "hvdtrain.train()")
    if workers is not None:
        return train_on_workers(parsed, task_class, require_count("workers", workers))
    try:
        with StopSignals("hvdtrain", answers=True) as signals:
            asked = with_deadline(signals.asked, parsed, begin)
            end = train_once(parsed, load_task_class(parsed, task_class), begin, asked)
    finally:
        close_logs()
    return TrainResult({"status": "checked"}) if end.folder is None else result_in(end.folder, task_class)


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above`, and of `below` what it does not name, at any depth."""
    both = {key for key in below.keys() & above.keys() if isinstance(below[key], dict) and isinstance(above[key], dict)}
    return {**below, **above, **{key: _over(below[key], above[key]) for key in both}}


def _name_of(task: str | type[Task]) -> str:
    if isinstance(task, str):
        return task
    if not inspect.isclass(task):
        raise UsageError(
            f"hvdtrain.train() was given task={task!r}.",
            "A task is a name or a class.",
            "give the name of a built-in task, 'module:Class', or a class derived from hvdtrain.Task.",
        )
    return f"{task.__module__}:{task.__qualname__}"


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Paths as text, and numbers of numpy as Python's, at any depth."""
    return {key: _plain_value(value) for key, value in values.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _plain(value)
    if isinstance(value, list | tuple):
        return [_plain_value(each) for each in value]
    if hasattr(value, "dtype") and hasattr(value, "item") and not getattr(value, "shape", ()):
        return value.item()
    return str(value) if isinstance(value, Path) else value
