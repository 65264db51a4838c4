"""What Horovod is compiled with: the C++ compiler, its flags, the Python headers and MPI; CUDA is in `cuda`.

MPI, which Horovod also loads, is the environment's own wheel, or the system's.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.errors import UsageError
from hvdtrain.horovod_wheel.pip_packages import MPI_PACKAGE, installed_version

# What a user may set to steer the compiler; everything else that Horovod's build reads is set by us or removed.
FLAG_VARIABLES = ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS")

# Half-precision conversion and fused multiply-add, which Horovod uses for fp16 reductions. Its own build asks the
# compiler for the machine it runs on; a wheel in a shared home folder must not depend on that.
_ARCHITECTURE_FLAGS = {"avx": "-mavx", "f16c": "-mf16c", "fma": "-mfma"}


def find_compiler() -> str:
    """Path of the C++ compiler: CXX if set, else g++, c++ or clang++. Raises `UsageError` if there is none."""
    wanted = os.environ.get("CXX")
    for name in [wanted] if wanted else ["g++", "c++", "clang++"]:
        path = shutil.which(name)
        if path:
            return path
    raise UsageError(
        f"There is no C++ compiler ({wanted or 'g++, c++ or clang++'}) on this machine's path.",
        "Horovod is published as source code only and has to be compiled.",
        "install one (Debian, Ubuntu: `apt-get install g++ make`) and run `make setup` again.",
    )


def compiler_version(compiler: str) -> str:
    """First line of `compiler --version` and its target, such as x86_64-linux-gnu."""
    lines = [
        subprocess.run([compiler, flag], capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()[0]
        for flag in ("--version", "-dumpmachine")
    ]
    return " ".join(lines)


def architecture_flags(cpuinfo: str) -> str:
    """The instruction-set flags for the processor that the text of /proc/cpuinfo describes; "" outside x86."""
    flags = next((line.split(":", 1)[1].split() for line in cpuinfo.splitlines() if line.startswith("flags")), [])
    return " ".join(option for name, option in _ARCHITECTURE_FLAGS.items() if name in flags)


def require_make() -> None:
    """Raises UsageError where there is no `make`, which CMake drives."""
    if shutil.which("make") is None:
        raise UsageError(
            "There is no `make` on this machine's path.",
            "CMake needs it to compile Horovod.",
            "install it (Debian, Ubuntu: `apt-get install make`) and run `make setup` again.",
        )


def debian_package(part: str) -> str:
    """Debian's and Ubuntu's name for a part of this Python, such as python3.13-venv."""
    return f"python{sysconfig.get_python_version()}-{part}"


def python_headers() -> Path:
    """The folder that holds Python.h: the interpreter's own, else the copy in TensorFlow's wheel for the same Python,
    as Debian keeps the headers in a package of its own (python3-dev). Raises UsageError: there are none."""
    include = Path(sysconfig.get_path("include"))
    if (include / "Python.h").is_file():
        return include
    spec = importlib.util.find_spec("tensorflow")
    external = Path(spec.origin).parent / "include" / "external" if spec is not None and spec.origin else include
    bundled = sorted(external.glob(f"*/include/python{sysconfig.get_python_version()}/Python.h"))
    if bundled:
        return bundled[0].parent
    raise UsageError(
        f"There is no Python.h in {include}.",
        "Horovod's extension for PyTorch cannot be compiled without the headers of this Python.",
        f"install them (Debian, Ubuntu: `apt-get install {debian_package('dev')}`) and run `make setup` again.",
    )


@dataclass(frozen=True)
class Mpi:
    """An MPI that is there: of `kind` "wheel" or "system".

    `version` is the wheel's, or what `mpirun --version` says first. `location` is "" for the wheel, which is found
    relative to the environment; else the path of `mpicxx` and its flags, which end up in the binary.
    """

    kind: str
    version: str
    location: str

    def __str__(self) -> str:
        return f"{self.version} ({'PyPI wheel' if self.kind == 'wheel' else self.location.split()[0]})"


def find_mpi() -> Mpi | None:
    """The MPI of this environment or, without one, of the system; None where the wheel has to be installed first."""
    programs = os.path.realpath(os.path.join(sys.prefix, "bin"))
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    outside = os.pathsep.join(folder for folder in folders if os.path.realpath(folder) != programs)
    return choose_mpi(installed_version(MPI_PACKAGE), usable_mpicxx(outside))


def choose_mpi(wheel_version: str | None, system_mpicxx: str | None) -> Mpi | None:
    """A wheel that is in the environment wins, then comes the system's MPI, which knows its network.

    The wheel's `mpirun` is the first on the path, and the MPI that starts the processes must be the one that they load.
    """
    if wheel_version is not None:
        return Mpi("wheel", f"Open MPI {wheel_version}", "")
    if system_mpicxx is None:
        return None
    mpirun = shutil.which("mpirun", path=os.path.dirname(system_mpicxx)) or shutil.which("mpirun")
    version = _output_of([mpirun, "--version"]).splitlines() if mpirun else []
    location = f"{system_mpicxx} {_output_of([system_mpicxx, '-show'])}"
    return Mpi("system", version[0].strip() if version else "MPI without mpirun", location)


def usable_mpicxx(path: str) -> str | None:
    """The first `mpicxx` on `path` if it compiles; else None: Debian's openmpi-bin contains it without mpi.h."""
    mpicxx = shutil.which("mpicxx", path=path)
    if mpicxx is None:
        return None
    command = [mpicxx, "-fsyntax-only", "-x", "c++", "-"]
    tried = subprocess.run(command, input="#include <mpi.h>", capture_output=True, text=True, check=False, timeout=60)
    return mpicxx if tried.returncode == 0 else None


def _output_of(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout.strip()
