"""The one place where a plan is run."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from hvdtrain.errors import UsageError
from hvdtrain.launch.plan import LaunchPlan


def execute(plan: LaunchPlan, overwrite: bool = False) -> NoReturn:
    """Write the plan's files here, then become its command: signals and exit code are the launcher's own.

    Args:
        plan: what to run.
        overwrite: replace files that are there and say something else.

    Raises:
        UsageError: a file or folder cannot be used, or there is no such program; what was written is named.
    """
    written = write_files(plan, overwrite)
    program = shutil.which(plan.argv[0])
    if program is None:
        raise UsageError(
            f"There is no {plan.argv[0]} here.",
            f"The job was written to {', '.join(map(str, written))} and not started." if written else "Nothing ran.",
            "start it where there is one, or use another launcher.",
        )
    if plan.working_dir is not None:
        try:
            os.chdir(plan.working_dir)
        except OSError as error:
            raise UsageError(
                f"{plan.working_dir} cannot be entered: {error.strerror}.",
                "It was given as the working directory.",
                "check the path.",
            ) from error
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and what is ignored stays so after exec
    os.execve(program, list(plan.argv), plan.environment(os.environ))


def write_files(plan: LaunchPlan, overwrite: bool, folder: Path | None = None) -> list[Path]:
    """Write the plan's files into `folder` (None: here); returns their paths. Errors as `execute`."""
    folder = (folder or Path.cwd()).absolute()
    paths = [folder / name for name in plan.files]
    for path, text in zip(paths, plan.files.values(), strict=True):
        try:
            _write(path, text, overwrite)
        except OSError as error:
            raise UsageError(
                f"{path} cannot be written: {error.strerror}.", "The launcher reads the job there.", "change folders."
            ) from error
    return paths


def _write(path: Path, text: str, overwrite: bool) -> None:
    if path.exists() and not overwrite and path.read_text(errors="replace") != text:
        raise UsageError(
            f"{path} is there already and says something else.",
            "It may have been edited by hand.",
            "choose another --name, or allow it with --overwrite.",
        )
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)
