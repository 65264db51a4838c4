"""Which MPI Horovod is built with and loads: the environment's own wheel, or the system's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

from hvdtrain.horovod_wheel.packages import MPI_PACKAGE, installed_version


@dataclass(frozen=True)
class Mpi:
    """An MPI that is there.

    Attributes:
        kind: "wheel" or "system".
        version: of the wheel; of a system MPI, what `mpirun --version` says first.
        location: "" for the wheel, which is found relative to the environment; else the path of `mpicxx` and the
            flags it compiles and links with, which end up in the binary.
    """

    kind: str
    version: str
    location: str

    def __str__(self) -> str:
        return f"{self.version} ({'PyPI wheel' if self.kind == 'wheel' else self.location.split()[0]})"


def find_mpi() -> Mpi | None:
    """The MPI of this environment or, without one, of the system; None where the wheel has to be installed first."""
    return choose_mpi(installed_version(MPI_PACKAGE), usable_mpicxx(_path_outside_environment()))


def choose_mpi(wheel_version: str | None, system_mpicxx: str | None) -> Mpi | None:
    """A wheel that is in the environment wins, then comes the system's MPI, which knows its network.

    The wheel's `mpirun` is the first on the path, and the MPI that starts the processes must be the one that they load.
    """
    if wheel_version is not None:
        return Mpi("wheel", f"Open MPI {wheel_version}", "")
    return None if system_mpicxx is None else _describe_system(system_mpicxx)


def usable_mpicxx(path: str) -> str | None:
    """The first `mpicxx` on `path` if it compiles; else None: Debian's openmpi-bin has it without mpi.h."""
    mpicxx = shutil.which("mpicxx", path=path)
    if mpicxx is None:
        return None
    command = [mpicxx, "-fsyntax-only", "-x", "c++", "-"]
    tried = subprocess.run(command, input="#include <mpi.h>", capture_output=True, text=True, check=False, timeout=60)
    return mpicxx if tried.returncode == 0 else None


def _path_outside_environment() -> str:
    own = os.path.join(sys.prefix, "bin")
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if os.path.realpath(folder) != os.path.realpath(own))


def _describe_system(mpicxx: str) -> Mpi:
    flags = _output_of([mpicxx, "-show"])
    mpirun = shutil.which("mpirun", path=os.path.dirname(mpicxx)) or shutil.which("mpirun")
    version = _output_of([mpirun, "--version"]).splitlines() if mpirun else []
    return Mpi("system", version[0].strip() if version else "MPI without mpirun", f"{mpicxx} {flags}")


def _output_of(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout.strip()
