"""Makes constraints.txt: resolves pyproject.toml's ranges in a scratch environment and writes down the result."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from hvdtrain.horovod_wheel.build import BUILD_TOOLS
from hvdtrain.horovod_wheel.mpi import MPI_PACKAGE
from hvdtrain.horovod_wheel.pip import pip_install

_HEADER = """\
# The exact version of every package, transitive ones included; pyproject.toml has the ranges.
# `make setup` installs nothing else. Made by `make constraints`: do not edit by hand.
# A CUDA build of torch pins the nvidia-*, cuda-* and triton packages that it needs itself.
"""

# Ours, and those that only a CUDA build of torch brings.
_LEFT_OUT = re.compile(r"(#|hvdtrain|horovod|pip|triton|nvidia-|cuda-)", flags=re.IGNORECASE)


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
    """The lines of `pip freeze --all` as constraints.

    A local part of a version, such as +cpu, goes: the same constraint must allow the build for CUDA.
    """
    lines = [line for line in frozen.splitlines() if "==" in line and not _LEFT_OUT.match(line)]
    return "".join(f"{line.partition('+')[0]}\n" for line in lines)
