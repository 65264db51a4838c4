"""Interpreters of this test process that have imported a framework, each started when a test first asks for it."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from support.warm.client import ask

Interpreter = Literal["warm", "warm workers", "fresh"]

_SCRIPTS = Path(__file__).parent
# What a server must not take from its caller, or has for all its children. With one thread, OpenBLAS starts none.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
_NOT_INHERITED = re.compile("OMP_|HOROVOD_|HVDTRAIN_|OMPI_|PMIX_|TRAIN_")


_WITH_WARM_WORKERS = """#!/bin/sh
# Stands for python: launchers are new interpreters for which this file is Python, trainings are forks of a warm one.
case "$1 $2 $3" in
"-m hvdtrain launch" | "-m hvdtrain chaos") exec {python} -c '{launcher}' "$0" "$@" ;;
"-m hvdtrain train") exec {client} "$@" ;;
*) exec {python} "$@" ;;
esac
"""
_LAUNCHER = (
    "import runpy, sys; sys.executable = sys.argv[1]; del sys.argv[:3]; "
    'runpy.run_module("hvdtrain", run_name="__main__", alter_sys=True)'
)


def with_interpreter(command: Sequence[str], interpreter: Interpreter = "warm") -> list[str]:
    """The command with what stands for the word "python": this interpreter, or one that has imported the framework.

    Args: `interpreter`: "warm workers" is for `hvdtrain launch local` and `hvdtrain chaos`, which start trainings.
    """
    if "python" not in command:
        return list(command)
    place = list(command).index("python")
    words = [sys.executable]
    if interpreter != "fresh":
        names = " ".join(Path(word).name for word in command)  # folders have the names of tests
        forks = warm("tensorflow" if re.search("tensorflow|keras", names) else "torch")
        words = forks.words if interpreter == "warm" else [forks.python]
    return [*command[:place], *words, *command[place + 1 :]]


def children_of(run: str) -> dict[int, int]:
    """Client → child, of all servers here, of those that work for a run. Each child leads a session."""
    file = _folder() / "runs" / run
    pairs = map(str.split, file.read_text().splitlines()) if file.exists() else ()
    return {int(client): int(child) for client, child in pairs}


class WarmInterpreter:
    """One server. Args: `kind`: as of `server.py`."""

    def __init__(self, kind: str) -> None:
        self._path = str(_folder() / kind)
        inherited = {name: value for name, value in os.environ.items() if not _NOT_INHERITED.match(name)}
        log_file = _folder() / f"{kind}.log"
        with log_file.open("wb") as log:
            self._server = subprocess.Popen(
                [sys.executable, str(_SCRIPTS / "server.py"), kind, self._path, str(_folder() / "runs")],
                stdin=subprocess.PIPE,  # the server ends with it, and so with this process
                stdout=subprocess.PIPE,
                stderr=log,
                env={**inherited, **_ENVIRONMENT},
                start_new_session=True,
            )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"ready\n", log_file.read_text()

    @property
    def words(self) -> list[str]:
        """What may stand in the place of "python" in a command."""
        return [sys.executable, "-I", "-S", str(_SCRIPTS / "client.py"), self._path]

    @functools.cached_property
    def python(self) -> str:
        """A program that stands for python, by which launchers start the workers too."""
        place = Path(f"{self._path}-python")
        parts = {"python": sys.executable, "launcher": _LAUNCHER, "client": shlex.join(self.words)}
        place.write_text(_WITH_WARM_WORKERS.format(**parts))
        place.chmod(0o755)
        return str(place)

    def run(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], deadline_s: float) -> tuple[int, str, str]:
        """`python ARGV` until it ends: exit code and outputs. Raises: TimeoutError; the child is killed then."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull) as nothing:
            streams = [nothing.fileno(), out.fileno(), err.fileno()]
            with ask(self._path, argv, str(cwd), env, streams) as server:
                server.settimeout(deadline_s)
                server.recv(64)
                status = int(server.recv(64) or 256)
            texts = [file.read().decode() for file in (out, err) if not file.seek(0)]
        return os.waitstatus_to_exitcode(status), texts[0], texts[1]

    def close(self) -> None:
        """End the server and what it has forked."""
        self._server.communicate(timeout=30)


_started: dict[str, WarmInterpreter] = {}
_starting = threading.Lock()


def warm(kind: str) -> WarmInterpreter:
    """That of this test process."""
    with _starting:
        if kind not in _started:
            _started[kind] = WarmInterpreter(kind)
        return _started[kind]


def close_all() -> None:
    """tests/conftest.py calls this in the end."""
    while _started:
        _started.popitem()[1].close()
    shutil.rmtree(_folder())
    _folder.cache_clear()


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    (folder / "runs").mkdir()
    return folder
