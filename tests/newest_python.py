"""Two ranks in both frameworks in the newest supported Python, where that is here and is not this one: `make newest`.

Its virtual environment, .venv-3.13, is kept. Horovod is built without NCCL: what is tried is the Python.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.horovod_wheel import SUPPORTED

ROOT = Path(__file__).parents[1]
SETUP_SECONDS, RUN_SECONDS = 3600.0, 600.0
LAUNCHERS = {"torch": (), "tensorflow": ("--gloo",)}


def main() -> int:
    """Returns 0 if both runs went well or there is nothing to try; CalledProcessError or TimeoutExpired otherwise."""
    name = ".".join(map(str, SUPPORTED[-1]))
    if sys.version_info[:2] == SUPPORTED[-1]:
        print(f"newest: the other tests have run in Python {name} already")
        return 0
    python = find_python(name)
    if python is None:
        print(f"newest: there is no Python {name} here, so nothing is tried in it")
        return 0
    venv = ROOT / f".venv-{name}"
    setup = ("-m", "hvdtrain.horovod_wheel", "setup", "--venv", str(venv), "--extras", "torch,tensorflow,mpi")
    run([python, *setup], SETUP_SECONDS)
    for framework, launcher in LAUNCHERS.items():
        train(venv / "bin", framework, launcher)
    print(f"newest: both frameworks train on two ranks in Python {name}")
    return 0


def find_python(name: str) -> str | None:
    """A Python of that version that runs: on the path, else of pyenv, whose shims run only what is switched on."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [f"python{name}", *map(str, sorted(versions.glob(f"{name}.*/bin/python{name}")))]
    return next((python for python in candidates if runs(python)), None)


def runs(python: str) -> bool:
    """Whether it can make virtual environments."""
    try:
        return subprocess.run([python, "-c", "import ensurepip"], capture_output=True, timeout=60).returncode == 0
    except FileNotFoundError:
        return False


def train(programs: Path, framework: str, launcher: Sequence[str]) -> None:
    """An epoch of the digits on two ranks, which end by comparing their weights."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--framework", framework, "--epochs", "1", "--output-dir", f"{folder}/run"]
        job = [str(programs / "python"), "-m", "hvdtrain", *flags]
        run([str(programs / "horovodrun"), *launcher, "-np", "2", *job], RUN_SECONDS)
        if not Path(folder, "run", "result.json").is_file():
            raise SystemExit(f"newest: {framework} ended with exit code 0, but has left no result.json")


def run(command: list[str], seconds: float) -> None:
    """Runs it in the project's folder; errors as `subprocess.run` with check=True."""
    print(f"newest: {' '.join(command)}", flush=True)
    subprocess.run(command, cwd=ROOT, env={**os.environ, "HVDTRAIN_WITHOUT_NCCL": "1"}, timeout=seconds, check=True)


if __name__ == "__main__":
    sys.exit(main())
