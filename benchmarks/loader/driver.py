"""Starts the processes of arms and asks them, one at a time."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.loader.datasets import DataSet

_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_ONE_THREAD: Final = {
    name: "1"
    for name in (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "TF_NUM_INTRAOP_THREADS",
        "TF_NUM_INTEROP_THREADS",
    )
}


class ArmError(RuntimeError):
    """An arm's process failed, or answered with an error."""


class ArmProcess:
    """One arm in a process of its own; a context manager that ends it.

    Args:
        name: of the arm.
        python: interpreter that has its library.
        core: CPU that it is pinned to.
        data: folder that holds the data sets.
        log: file for what the process and its libraries print.
        deadline_s: longest wait for one reply, in seconds.
    """

    def __init__(self, name: str, python: str, core: int, data: Path, log: Path, deadline_s: float = 600.0) -> None:
        self.name = name
        self._data = data
        self._log = log
        self._deadline_s = deadline_s
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.loader.arm_process", name, str(core)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=_REPOSITORY,
                env={**os.environ, **_ONE_THREAD, "TF_CPP_MIN_LOG_LEVEL": "2"},
                text=True,
            )
        try:
            self.description = self._ask({"command": "describe"})
        except ArmError:
            self.close()
            raise

    def ask(self, command: str, data: DataSet, **options: Any) -> dict[str, Any]:
        """Run a command on a data set.

        Raises:
            ArmError: the arm failed, or did not answer in time.
        """
        folder = self.folder(data)
        return self._ask({"command": command, "folder": str(folder), "data": data.as_json(), **options})

    def folder(self, data: DataSet) -> Path:
        """Where this arm's files of a data set are."""
        return self._data / f"{data.name}-{data.records}" / str(self.description["format"])

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        reader, writer = self._process.stdout, self._process.stdin
        if reader is None or writer is None:
            raise ArmError(f"{self.name} has no pipes")
        try:
            writer.write(json.dumps(request) + "\n")
            writer.flush()
        except BrokenPipeError as error:
            raise self._failed("ended") from error
        if not select.select([reader], [], [], self._deadline_s)[0]:
            raise self._failed(f"gave no answer in {self._deadline_s:g} s")
        if not (line := reader.readline()):
            raise self._failed("ended")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise ArmError(f"{self.name}: {request['command']}: {reply['error']}")
        return reply

    def _failed(self, how: str) -> ArmError:
        return ArmError(f"{self.name} {how}; see {self._log}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it may have ended by itself, with a request unread
                self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        if self._process.stdout is not None:
            self._process.stdout.close()
