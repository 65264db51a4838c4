"""Run a plan, and find the programs that plans need."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from hvdtrain.errors import UsageError
from hvdtrain.launch.rendering import LaunchPlan


def execute(plan: LaunchPlan, overwrite: bool = False) -> NoReturn:
    """Write the plan's files here, then become its command: signals and exit code are the launcher's own.

    `overwrite` replaces files that are there and say something else. Raises UsageError: a file or folder cannot be
    used, or there is no such program; what was written is named.
    """
    written = write_files(plan, overwrite)
    program = shutil.which(plan.argv[0])
    if program is None:
        raise UsageError(
            f"There is no {plan.argv[0]} here.",
            f"The job was written to {', '.join(map(str, written))} and not started." if written else "Nothing ran.",
            "start it where there is one, or use another launcher.",
        )
    if plan.stdin is not None:
        reading = os.open(plan.stdin, os.O_RDONLY)
        os.dup2(reading, 0)
    if plan.working_dir is not None:
        try:
            os.chdir(plan.working_dir)
        except OSError as error:
            fact = f"{plan.working_dir} cannot be entered: {error.strerror}."
            raise UsageError(fact, "It was given as the working directory.", "check the path.") from error
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
    path = Path(os.path.realpath(path))  # a link stays one: the file that it leads to is replaced
    if os.path.lexists(path) and not path.is_file():
        raise UsageError(
            f"{path} is not a regular file.", "It would be replaced by one.", "choose another --name, or remove it."
        )
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


def find_program(name: str) -> str | None:
    """Path of a program: beside this interpreter, where pip puts them, or else on PATH; None if it is nowhere."""
    beside = Path(sys.executable).parent / name
    return str(beside) if os.access(beside, os.X_OK) and beside.is_file() else shutil.which(name)


def run_program(command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a program without input. Raises OSError, subprocess.TimeoutExpired (it took more than `seconds`)."""
    return subprocess.run(
        command, capture_output=True, errors="replace", stdin=subprocess.DEVNULL, timeout=seconds, check=False
    )


def path_with(program: str, environ: Mapping[str, str]) -> str:
    """PATH with the folder of `program` first, for programs that look for others beside them."""
    folders = [str(Path(program).parent), *environ.get("PATH", os.defpath).split(os.pathsep)]
    return os.pathsep.join(dict.fromkeys(folders))
