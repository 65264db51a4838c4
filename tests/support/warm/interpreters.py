"""Servers of this test process: one for each framework, started when a test first asks for it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_SCRIPTS = Path(__file__).parent
# What a server must not take from its caller, or has for all its children. With one thread, OpenBLAS starts none.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
_NOT_INHERITED = re.compile("OMP_|HOROVOD_|HVDTRAIN_|OMPI_|PMIX_|TRAIN_")


class WarmInterpreters:
    """What may stand in the place of "python" in a command."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="warm-"))
        (self._folder / "runs").mkdir()
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    def words(self, command: Sequence[str]) -> list[str]:
        """What to put in the place of "python": the interpreter that has imported the command's framework."""
        names = " ".join(Path(word).name for word in command)  # folders have the names of tests
        framework = "tensorflow" if re.search("tensorflow|keras", names) else "torch"
        if framework not in self._servers:
            self._servers[framework] = self._start(framework)
        return [sys.executable, "-I", "-S", str(_SCRIPTS / "client.py"), str(self._folder / framework)]

    def sessions_of(self, run: str) -> set[int]:
        """The children that work for a run: each leads a session."""
        file = self._folder / "runs" / run
        return set(map(int, file.read_text().split())) if file.exists() else set()

    def close(self) -> None:
        """End the servers and what they have forked."""
        for server in self._servers.values():
            server.communicate(timeout=30)
        shutil.rmtree(self._folder)

    def _start(self, framework: str) -> subprocess.Popen[bytes]:
        inherited = {name: value for name, value in os.environ.items() if not _NOT_INHERITED.match(name)}
        with (self._folder / f"{framework}.log").open("wb") as log:
            server = subprocess.Popen(
                [
                    sys.executable,
                    str(_SCRIPTS / "server.py"),
                    framework,
                    *map(str, (self._folder / framework, self._folder / "runs")),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**inherited, **_ENVIRONMENT},
                start_new_session=True,
            )
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n", (self._folder / f"{framework}.log").read_text()
        return server
