"""What `make setup` does: the virtual environment, the pinned packages, Horovod; nothing when nothing changed."""

import hashlib
import importlib.util
import os
import platform
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

from hvdtrain.errors import HvdtrainError, UsageError, did_you_mean
from hvdtrain.horovod_wheel import carried as without_network
from hvdtrain.horovod_wheel.pip_packages import UV, pip_install
from hvdtrain.horovod_wheel.source import series
from hvdtrain.horovod_wheel.toolchain import debian_package
from hvdtrain.horovod_wheel.wheel_cache import lock_within

DEFAULT_EXTRAS = "torch,torchvision,tensorflow,mpi"

# Files in the environment: what it holds by a hash, which extras it was set up with, and the folder that pip used.
_STAMP = "hvdtrain-setup"
EXTRAS = "hvdtrain-extras"
_CARRIED = "hvdtrain-carried"

# The extra that brings CUDA's compiler.
CUDA = "cuda"

_FILES = ("pyproject.toml", "constraints.txt", "setup.py", "hvdtrain/version.py")
_VARIABLES = ("HVDTRAIN_WITHOUT_NCCL", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS")
_LOCK_SECONDS = 7200.0
_START_UP = "hvdtrain_start_up"


def set_up(root: Path, venv: Path, asked: str | None, added: str = "", carried: Path | None = None) -> None:
    """Makes `venv` hold the project in `root` (editable), its extras and Horovod. Extras are comma-separated names:
    `asked`, or where that is None those of the last call, and `added`. `carried`: the folder that `carry` has filled,
    for a machine without a network; None: that of the last call, if it had one.

    The stamp that says so is removed first and written last, so whatever ends this in between makes the next call do
    the work again. Raises UsageError: an extra that does not exist, or a part of the system is missing; HvdtrainError:
    pip or the compiler failed.
    """
    carried = _carried_before(venv, carried)
    if carried is None:
        require_ensurepip()
    else:
        without_network.use(carried)
    extras = chosen_extras(root, venv, asked, added)
    require_cuda_possible(extras)
    wanted, stamp = digest(root, venv, f"{extras},{carried}" if carried else extras), venv / _STAMP
    ready = f"{os.path.relpath(venv)} is ready: Python {platform.python_version()} with {extras}"
    if read_line(stamp) == wanted:
        print(f"setup: nothing changed, {ready}")
        return
    with open(root / "pyproject.toml", "rb") as project:
        lock_within(project.fileno(), _LOCK_SECONDS, f"setup: another set-up is at work in {root}; waiting for it")
        if read_line(stamp) != wanted:  # the one that we waited for may have done it
            stamp.unlink(missing_ok=True)
            python = _ensure_venv(venv, carried)
            write_line(venv / EXTRAS, extras)
            write_line(venv / _CARRIED, str(carried or ""))
            constraints, installers = root / "constraints.txt", [UV]
            if carried is not None:  # pip does it: uv does not see packages of another environment
                constraints, installers = without_network.open_to_this_python(venv, constraints), []
            _install_all(root, python, extras, constraints, installers)
            write_line(stamp, wanted)
    print(f"setup: {ready}", flush=True)


def _carried_before(venv: Path, carried: Path | None) -> Path | None:
    before = read_line(venv / _CARRIED)
    return carried.absolute() if carried is not None else Path(before) if before else None


def require_ensurepip() -> None:
    """Raises UsageError where this Python cannot make virtual environments."""
    if importlib.util.find_spec("ensurepip") is None:
        raise UsageError(
            f"{sys.executable} has no ensurepip.",
            "A virtual environment cannot be made without it.",
            f"install it (Debian, Ubuntu: `apt-get install {debian_package('venv')}`) and run `make setup` again.",
        )


def digest(root: Path, venv: Path, extras: str) -> str:
    """A hash of everything that decides what is in the environment, in hexadecimal."""
    folder = Path(__file__).parent
    files = [root / name for name in _FILES] + sorted([*folder.glob("*.py"), *series()])
    facts = [sys.version, os.path.realpath(sys.executable), str(venv.absolute()), ",".join(sorted(extras.split(",")))]
    facts += [str(shutil.which(program)) for program in ("mpicxx", "nvcc")]
    facts += [f"{name}={os.environ.get(name)}" for name in _VARIABLES]
    facts += [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def _ensure_venv(venv: Path, carried: Path | None) -> str:
    """Path of the environment's Python. One that is broken, of another Python, or was moved, is made again."""
    python = venv / "bin" / "python"
    if not _is_usable(venv):
        print(f"setup: making the virtual environment {venv} with {sys.executable}", flush=True)
        bare = [] if carried is None else ["--without-pip"]
        command = [sys.executable, "-m", "venv", "--clear", *bare, str(venv)]
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        if run.returncode != 0:
            raise HvdtrainError(
                f"`{' '.join(command)}` failed: {(run.stderr or run.stdout).strip()}.",
                "Nothing can be installed without a virtual environment.",
                f"check that the folder can be written to and that {debian_package('venv')} is installed.",
            )
        if carried is not None:
            without_network.install_pip(venv, carried)
    return str(python.absolute())


def _is_usable(venv: Path) -> bool:
    python, pip = venv / "bin" / "python", venv / "bin" / "pip"
    if not (python.exists() and pip.exists()):
        return False
    question = "import sys; print(sys.version, sys.base_prefix)"
    run = subprocess.run([str(python), "-c", question], capture_output=True, text=True, check=False, timeout=60)
    made_here = pip.read_text(encoding="utf-8").startswith(f"#!{venv.absolute()}/")
    return made_here and run.stdout.strip() == f"{sys.version} {sys.base_prefix}".strip()


def _install_all(root: Path, python: str, extras: str, constraints: Path, installers: list[str]) -> None:
    print("setup: installing the packages that constraints.txt pins (seconds; a first time, 1 to 4 min)", flush=True)
    cuda = CUDA in extras.split(",")
    pip_install([*installers, "setuptools", "wheel"], constraints, python)
    no_cpu_build = no_cpu_torch(constraints.read_text(encoding="utf-8")) if cuda else []
    pip_install(["--no-build-isolation", "--editable", f"{root}[{extras}]", *no_cpu_build], constraints, python)
    nccl = ["--with-nccl"] if cuda else []
    _run_to_its_end([python, "-m", "hvdtrain.horovod_wheel", "install", "--constraints", str(constraints), *nccl])
    _run_to_its_end([python, "-m", "hvdtrain.horovod_wheel", "start-up"])


def require_cuda_possible(extras: str) -> None:
    """Raises UsageError where the comma-separated `extras` contain cuda, and a build with NCCL is excluded."""
    names = extras.split(",")
    if CUDA not in names:
        return
    if "torch" not in names:
        raise UsageError(
            f"The extras are {extras}: cuda without torch.",
            "CUDA's compiler and NCCL come in the versions that PyTorch's CUDA build requires.",
            f"add torch: `make setup EXTRAS=torch,{extras}`.",
        )
    if os.environ.get("HVDTRAIN_WITHOUT_NCCL") == "1":
        raise UsageError(
            "HVDTRAIN_WITHOUT_NCCL=1 is set, and the extra cuda is asked for.",
            "The one asks for a build for CPUs, the other for one with NCCL.",
            "unset HVDTRAIN_WITHOUT_NCCL, or leave the extra cuda out.",
        )


def no_cpu_torch(constraints: str) -> list[str]:
    """The requirement that keeps pip from the CPU build of the torch that the text `constraints` pins: an index or a
    folder may offer both, and of 2.13.0 and 2.13.0+cpu pip takes the latter."""
    pin = re.search(r"^torch==(\S+)$", constraints, flags=re.MULTILINE)
    return [f"torch!={pin[1]}+cpu"] if pin else []


def _run_to_its_end(command: list[str]) -> None:
    """Runs a command; if we are ended, it gets the time to stop the compiler and to remove what is half made."""
    child = subprocess.Popen(command)
    try:
        code = child.wait(timeout=_LOCK_SECONDS * 2)
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait(timeout=60)
    if code != 0:
        raise SystemExit(code)


def chosen_extras(root: Path, venv: Path, asked: str | None, added: str) -> str:
    """The extras to install: `asked` (where that is None, what `venv` remembers, at first the default) and `added`,
    which is told in a line where it brings new ones. Raises UsageError: pyproject.toml in `root` has no such extra."""
    chosen = _names(asked if asked is not None else read_line(venv / EXTRAS) or DEFAULT_EXTRAS)
    known = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for name in chosen:
        if name not in known:
            hint = did_you_mean(name, known)
            raise UsageError(f"There is no extra {name!r}.", "Nothing was installed.", hint)
    missing = [name for name in _names(added) if name not in chosen]
    if missing:
        print(f"setup: {','.join(missing)} is added to {','.join(chosen)}: checks and tests need it", flush=True)
    return ",".join(chosen + missing)


def read_line(file: Path) -> str:
    """The text of a small file; "" where there is none."""
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def write_line(file: Path, text: str) -> None:
    """Replaces the file at once, so that nobody reads half of it."""
    temporary = file.with_suffix(".new")
    temporary.write_text(text + "\n", encoding="utf-8")
    os.replace(temporary, file)


def _names(extras: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in extras.split(",") if name.strip()))


def write_start_up(folder: Path | None = None) -> None:
    """Write the module and the .pth file that imports it into a folder of packages; None: this environment's."""
    folder = folder or Path(sysconfig.get_path("purelib"))
    module = folder / f"{_START_UP}.py"
    module.write_text(Path(__file__).with_name("start_up.py").read_text(encoding="utf-8"), encoding="utf-8")
    py_compile.compile(str(module), doraise=True)  # else each start compiles it, where the folder cannot be written
    (folder / f"{_START_UP}.pth").write_text(f"import {_START_UP}\n", encoding="utf-8")
