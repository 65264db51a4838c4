"""Set-up without a network: from a folder of packages that were carried there, beside those that its Python has.

`carry` fills the folder on a machine with a network. On the other one, `set_up` lets pip look nowhere else, and the
new environment also sees the packages of the Python that makes it, such as a PyTorch that is there.
"""

import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.horovod_wheel.pip_packages import BUILD_TOOLS, MPI_PACKAGE, PIP_SECONDS, uv_command
from hvdtrain.horovod_wheel.source import fetch_sdist

_SEEN = "hvdtrain-base.pth"  # in an environment: the folders of packages of the Python that has made it
_PINS = "hvdtrain-constraints.txt"  # in an environment: constraints.txt without packages that this Python has
_GLIBC = 28  # the C library of the other machine is 2.28 or newer: Debian 10, RHEL 8


def carry(root: Path, into: Path, extras: str, there: Path | None, python: str) -> None:
    """Download into the folder `into` what set-up needs on a machine without a network, of this kind of processor.

    Args:
        root: of the project.
        extras: comma-separated names.
        there: what `pip list --format=freeze` prints on the other machine, whose versions are kept; None: it has none.
        python: the other machine's version of Python, such as 3.12.

    Raises HvdtrainError: these versions do not go together, or a package cannot be downloaded; UsageError: `there`
    cannot be read, or lists nothing.
    """
    has = {} if there is None else {name: version.partition("+")[0] for name, version in _listed(there).items()}
    has.pop("pip", None)  # each environment has its own
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        pins = Path(scratch) / "pins.txt"
        pinned = pins_beside((root / "constraints.txt").read_text(encoding="utf-8"), has)
        pins.write_text(pinned + "".join(f"{name}=={has[name]}\n" for name in has), encoding="utf-8")
        wanted = _resolved(root, extras.split(","), pins, python)
        needed = [line for line in wanted if next(iter(versions_in(line))) not in has]
        _download(needed, into, python)
    sdist = fetch_sdist(into)
    size = sum(file.stat().st_size for file in into.iterdir())
    print(f"carry: {len(needed)} packages and {sdist.name} are in {into}, {size / 1e6:.0f} MB; on the other machine:")
    print(f"  make setup CARRIED={into} EXTRAS={extras} PYTHON=python{python}")


def _resolved(root: Path, extras: list[str], pins: Path, python: str) -> list[str]:
    """Lines NAME==VERSION: what `root` with `extras` needs, set-up included."""
    tools = pins.with_name("tools.in")
    tools.write_text("\n".join([*BUILD_TOOLS, MPI_PACKAGE, "pip"]) + "\n", encoding="utf-8")
    command, variables = uv_command(sys.executable, "compile")
    command += ["--no-header", "--no-annotate", "--python-version", python, "--constraint", str(pins)]
    command += ["--python-platform", f"{platform.machine()}-manylinux_2_{_GLIBC}"]
    command += [word for extra in extras for word in ("--extra", extra)]
    said = _output([*command, str(root / "pyproject.toml"), str(tools)], variables)
    return [line for line in said.splitlines() if "==" in line]


def _download(lines: list[str], into: Path, python: str) -> None:
    machine = platform.machine()
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(_GLIBC, 4, -1)]
    tags += [f"{name}_{machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux")]
    command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--only-binary=:all:", "--dest", str(into)]
    command += ["--python-version", python, *(word for tag in tags for word in ("--platform", tag))]
    if lines:
        _output([*command, *(line.partition(";")[0].strip() for line in lines)], {})


def _output(command: list[str], variables: Mapping[str, str]) -> str:
    environment = {**os.environ, **variables}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PIP_SECONDS, check=False)
    if run.returncode != 0:
        said = " ".join((run.stderr or run.stdout).split())
        raise HvdtrainError(
            f"The packages for the other machine cannot be had: {said}.",
            "Set-up there would have no other place to look for them.",
            "check the network, and the versions that the other machine has (`--there`).",
        )
    return run.stdout


def _listed(there: Path) -> dict[str, str]:
    try:
        found = versions_in(there.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        found, why = {}, f"cannot be read: {error}"
    else:
        why = "has no line NAME==VERSION"
    if not found:
        raise UsageError(
            f"{there} {why}.",
            "It says which packages need not be carried.",
            "write it on the other machine: `python3 -m pip list --format=freeze > there.txt`, or leave --there out.",
        )
    return found


def versions_in(listed: str) -> dict[str, str]:
    """{name: version} of lines NAME==VERSION; names as PyPI compares them."""
    found = re.findall(r"^([A-Za-z0-9][\w.-]*)==([^\s;]+)", listed, flags=re.MULTILINE)
    return {plain_name(name): version for name, version in found}


def plain_name(name: str) -> str:
    """A package's name as PyPI compares it: `Google_CRC32C` and `google-crc32c` are one."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins_beside(constraints: str, has: Mapping[str, str]) -> str:
    """The text `constraints` without the packages that are there already, in whatever version."""
    lines = constraints.splitlines(keepends=True)
    return "".join(line for line in lines if not set(versions_in(line)) & set(has))


def use(carried: Path) -> None:
    """Let pip look into the folder `carried` only, in this process and all that it starts.

    Raises UsageError: there is no such folder, or `carry` has not filled it.
    """
    if not list(carried.glob("horovod-*.tar.gz")):
        raise UsageError(
            f"There is no source release of Horovod in {carried}.",
            "Set-up without a network finds everything in the folder that CARRIED names.",
            "fill it on a machine with a network by `make carry CARRIED=...`, and copy it here.",
        )
    os.environ |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(carried)}


def open_to_this_python(venv: Path, constraints: Path) -> Path:
    """Let the environment `venv` see this Python's packages; returns the file of constraints for the others."""
    seen = next((venv / "lib").glob("python*/site-packages")) / _SEEN
    if sys.prefix != str(venv):  # else this is a later set-up, by the environment's own Python
        folders = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
        seen.write_text("\n".join(folders) + "\n", encoding="utf-8")
    command = [str(venv / "bin" / "python"), "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"]
    command += [word for folder in seen.read_text(encoding="utf-8").splitlines() for word in ("--path", folder)]
    listed = _run(command)
    pins = venv / _PINS
    pins.write_text(pins_beside(constraints.read_text(encoding="utf-8"), versions_in(listed)), encoding="utf-8")
    return pins


def install_pip(venv: Path, carried: Path) -> None:
    """Into an environment without it: this Python may have no ensurepip. Raises UsageError: none was carried."""
    wheels = sorted(carried.glob("pip-*.whl"))
    if not wheels:
        raise UsageError(
            f"There is no wheel of pip in {carried}.",
            "Set-up without a network installs packages by it.",
            "fill the folder on a machine with a network by `make carry CARRIED=...`, and copy it here.",
        )
    _run([str(venv / "bin" / "python"), f"{wheels[-1]}/pip", "install", "-qq", "--no-deps", str(wheels[-1])])


def _run(command: list[str]) -> str:
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if run.returncode != 0:
        raise HvdtrainError(
            f"`{' '.join(command)}` failed: {' '.join(run.stderr.split())}.",
            "The environment is not complete without it.",
            "remove .venv, check that CARRIED was copied as a whole, and run `make setup CARRIED=...` again.",
        )
    return run.stdout
