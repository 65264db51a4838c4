"""What a job is refused for besides its arguments: name, source and flags. Checked before anything is made."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path

from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.launch.sagemaker.hyperparameters import flags
from hvdtrain.launch.sagemaker.pipe_plan import run_hvdtrain
from hvdtrain.launch.sagemaker.source_archive import source_files
from hvdtrain.launch.sagemaker.spec import HyperparameterValue, TrainingSpec
from hvdtrain.launch.sagemaker.spec_checks import require_job_name

FlagCheck = Callable[[Sequence[str]], object]
"""Raises UsageError for flags that `hvdtrain train` would refuse."""

_CHECK_SECONDS = 120.0
_CHECKER = "hvdtrain.cli.launch.train_flags"


def require_ready(spec: TrainingSpec, job_name: str, check_flags: FlagCheck) -> None:
    """Raise UsageError for a job name, source, task module or flag of a task that cannot be."""
    require_job_name(job_name)
    files = source_files(spec)
    if spec.task is not None:
        _require_module(spec, files.keys())
        check_flags(checkable_flags(spec.worker_hyperparameters, spec.source_dir))


def require_writable(folder: Path) -> None:
    """Raise UsageError unless `folder` is there or can be made."""
    try:
        for path in (folder, *folder.parents):
            with suppress(FileNotFoundError):
                path.lstat()
                break
        tempfile.TemporaryDirectory(prefix=".hvdtrain-", dir=path).cleanup()
    except OSError as error:
        raise UsageError(
            f"The output folder {folder} cannot be written to: {error.strerror}.",
            "The job's model and output go there.",
            "choose another output_path (--output-path).",
        ) from error


def checkable_flags(
    hyperparameters: Mapping[str, HyperparameterValue], source_dir: str | PathLike[str] | None
) -> list[str]:
    """The flags of a task's workers, with the config file where it is now instead of where it will be there."""
    own = dict(hyperparameters)
    if "config" in own:
        path = str(own["config"])
        here = Path(source_dir or ".").expanduser() / path
        if source_dir is None or Path(path).is_absolute() or not here.is_file():
            raise UsageError(
                f"--config is {path!r}.",
                "In the container it is a file of the source folder.",
                "put it into a folder, and give --source-dir FOLDER and --config its path there.",
            )
        own["config"] = str(here)
    return flags(own)


def ask_hvdtrain(words: Sequence[str]) -> None:
    """The flag check in a process of its own, because `launch` knows none of hvdtrain's flags."""
    try:
        code, message, hint = run_hvdtrain(_CHECKER, words, _CHECK_SECONDS)
    except (subprocess.TimeoutExpired, OSError, ValueError) as error:  # too long, or no text that a process takes
        raise HvdtrainError(
            f"The hyperparameters could not be checked: {error}.", "Workers would refuse them.", "make them shorter."
        ) from error
    if code != 0:
        kind = UsageError if code == UsageError.exit_code else HvdtrainError
        hint = hint or "`hvdtrain train --help-all` tells its flags."
        raise kind("`hvdtrain train` refuses the hyperparameters.", message, hint)


def _require_module(spec: TrainingSpec, files: Collection[str]) -> None:
    module, colon, name = str(spec.task).partition(":")
    if not colon or module.startswith("hvdtrain."):
        return
    path = module.replace(".", "/")
    if not (module and name):
        raise UsageError(f"The task is {spec.task!r}.", "That is not module:Class.", "write e.g. my_task:MyTask.")
    if f"{path}.py" not in files and f"{path}/__init__.py" not in files:
        where = f"in {spec.source_dir}" if spec.source_dir is not None else "and no source_dir"
        raise UsageError(
            f"The task is {spec.task!r}, and there is no {path}.py {where}.",
            "Workers import the task's module from the folder that comes along.",
            "give its folder as source_dir (--source-dir); for a class of a package in your image, put a module there "
            "that imports it.",
        )
