"""What a job may be refused for besides its spec: name, source, flags. Looked at before anything is made."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from os import PathLike
from pathlib import Path

from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.launch.sagemaker.hyperparameters import flags
from hvdtrain.launch.sagemaker.source_archive import source_files
from hvdtrain.launch.sagemaker.spec import TrainingSpec
from hvdtrain.launch.sagemaker.spec_checks import require_job_name

FlagCheck = Callable[[Sequence[str]], object]
"""Raises UsageError for flags that `hvdtrain train` would refuse."""

_CHECK_SECONDS = 120.0
_CHECKER = "hvdtrain.cli.launch.train_flags"


def require_ready(spec: TrainingSpec, job_name: str, check_flags: FlagCheck) -> None:
    """Raise UsageError for a name, source, task module or flag that cannot be; nothing is left behind.

    Args:
        spec: the job.
        job_name: its whole name, on this machine also that of a folder.
        check_flags: is given the flags of a task's workers; a script of the user's own has its own flags.
    """
    require_job_name(job_name)
    files = source_files(spec)
    if spec.task is not None:
        _require_module(spec, files.keys())
        check_flags(_worker_flags(spec))


def require_writable(folder: Path) -> None:
    """Raise UsageError unless `folder` is there or can be made."""
    try:
        place = _nearest(folder)
        with tempfile.TemporaryDirectory(prefix=".hvdtrain-", dir=place):
            pass
    except OSError as error:
        raise UsageError(
            f"The output folder {folder} cannot be written to: {error.strerror}.",
            "The job's model and output go there.",
            "choose another output_path (--output-path).",
        ) from error


def _nearest(folder: Path) -> Path:
    """The folder, or what is there of its parents; OSError for what is in the way."""
    for path in (folder, *folder.parents):
        try:
            path.lstat()
        except FileNotFoundError:
            continue
        return path
    raise FileNotFoundError(2, "No such file or directory", str(folder))


def config_here(path: str, source_dir: str | PathLike[str] | None) -> str:
    """Where the config file is now, that will be at `path` in the container."""
    here = Path(source_dir or ".").expanduser() / path
    if source_dir is None or Path(path).is_absolute() or not here.is_file():
        raise UsageError(
            f"--config is {path!r}.",
            "In the container it is a file of the source folder.",
            "put it into a folder, and give --source-dir FOLDER and --config its path there.",
        )
    return str(here)


def ask_hvdtrain(words: Sequence[str]) -> None:
    """The flag check in a process of its own, because `launch` knows none of hvdtrain's flags."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", _CHECKER, *words],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_CHECK_SECONDS,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError, ValueError) as error:  # too long, or no text that a process takes
        raise HvdtrainError(
            f"The hyperparameters could not be checked: {error}.", "Workers would refuse them.", "make them shorter."
        ) from error
    if done.returncode == 0:
        return
    said = done.stderr.strip() or f"exit code {done.returncode}"
    message, _, hint = said.removeprefix("hvdtrain: ").partition("\nHINT: ")
    kind = UsageError if done.returncode == UsageError.exit_code else HvdtrainError
    raise kind(
        "`hvdtrain train` refuses the hyperparameters.",
        message,
        hint or "`hvdtrain train --help-all` tells its flags.",
    )


def _worker_flags(spec: TrainingSpec) -> list[str]:
    own = spec.worker_hyperparameters
    if "config" in own:
        own["config"] = config_here(str(own["config"]), spec.source_dir)
    return flags(own)


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
