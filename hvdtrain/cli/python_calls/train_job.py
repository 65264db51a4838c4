"""`hvdtrain.train(workers=N)`: a training by workers of this machine, for a script or a notebook."""

from dataclasses import replace
from pathlib import Path

from hvdtrain.cli.python_calls.job_failure import require_success
from hvdtrain.cli.python_calls.launched_job import run_job
from hvdtrain.cli.python_calls.private_folder import private_folder
from hvdtrain.cli.python_calls.train_result import TrainResult, result_in
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.config.yaml_file import dump_config
from hvdtrain.errors import RESUMABLE, HvdtrainError
from hvdtrain.run.run_folder import new_folder
from hvdtrain.task.task import Task
from hvdtrain.tasks.by_value import TASK_FILE_VARIABLE, packed
from hvdtrain.tasks.task_registry import usable

_HINT = "open files, locks and connections in the task's methods, such as open_data(), and not outside of them."


def train_on_workers(config: TrainConfig, task_class: type[Task] | None, workers: int) -> TrainResult:
    """Train as `config` says; `task_class` is the class that its task only names.

    Raises: as `hvdtrain.cli.python_calls.job_failure.require_success`, and UsageError: the task cannot be sent.
    """
    if task_class is not None:
        usable(task_class, config.task, config.framework)
    folder = Path(config.output_dir) if config.output_dir else new_folder(config.task, f"{workers}-workers")
    before = _written_at(folder / "result.json")
    with private_folder() as exchange:
        variables = {}
        if task_class is not None:
            sent = exchange / "task.pickle"
            sent.write_bytes(packed(task_class, f"The class {task_class.__qualname__}", _HINT))
            variables[TASK_FILE_VARIABLE] = str(sent)
        file = exchange / "config.yaml"
        file.write_text(dump_config(replace(config, output_dir=str(folder))))
        end = run_job(["local", "-np", str(workers), "--", "train", "--config", str(file)], variables)
    require_success(end)
    if config.dry_run:
        return TrainResult({"status": "checked"})
    written = _written_at(folder / "result.json")
    if written is None or (written == before and end.code == RESUMABLE):  # a finished run has nothing more to write
        raise HvdtrainError(
            f"The workers have ended, and have written no result.json to {folder}.",
            "They were stopped before training began.",
            "call it again.",
        )
    return result_in(folder, task_class)


def _written_at(file: Path) -> int | None:
    """In ns of the file's clock; None where there is no file. A run that goes on in its folder replaces its result."""
    return file.stat().st_mtime_ns if file.is_file() else None
