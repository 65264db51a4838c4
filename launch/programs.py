"""Programs that launchers need: where they are, and which MPI an mpirun belongs to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from hvdtrain.errors import UsageError
from hvdtrain.launch.mpi_flavors import FLAVORS, flavor_of

VERSION_SECONDS = 30.0


def find_program(name: str) -> str | None:
    """Path of a program: beside this interpreter, where pip puts them, or else on PATH; None if it is nowhere."""
    beside = Path(sys.executable).parent / name
    return str(beside) if os.access(beside, os.X_OK) and beside.is_file() else shutil.which(name)


def path_with(program: str, environ: Mapping[str, str]) -> str:
    """PATH with the folder of `program` first, for programs that look for others beside them."""
    folders = [str(Path(program).parent), *environ.get("PATH", os.defpath).split(os.pathsep)]
    return os.pathsep.join(dict.fromkeys(folders))


def mpi_flavor(program: str | None) -> str:
    """The flavor (see `hvdtrain.launch.mpi_flavors.FLAVORS`) of an mpirun, by its `--version`.

    Args:
        program: its path; None if there is none.

    Raises:
        UsageError: there is none, it does not answer, or it is of an MPI not known here.
    """
    hint = f"say which it is with --mpi: {', '.join(FLAVORS)}."
    if program is None:
        raise UsageError("There is no mpirun here.", "Its flags depend on the MPI that it belongs to.", hint)
    try:
        done = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{program} does not tell its version: {error}.", "Its flags depend on it.", hint) from error
    flavor = flavor_of(done.stdout + done.stderr)
    if flavor is None:
        said = (done.stdout + done.stderr).strip().splitlines()[:1] or [f"exit code {done.returncode}"]
        raise UsageError(f"{program} is of an MPI not known here: {said[0][:120]!r}.", "Its flags depend on it.", hint)
    return flavor
