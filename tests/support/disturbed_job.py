"""A training under `hvdtrain launch local` that a test disturbs, and what was seen of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hvdtrain.audit.audit_summary import read_coverage
from hvdtrain.launch.processes.orphan_reaper import process_table

DEADLINE_S = 240.0
GONE_S = 10.0
INTERVAL = 10
"""Updates between two checkpoints, where a test asks for no other number."""
TASKS = Path(__file__).parents[1] / "parallel" / "workers"
RECORD_VARIABLE = "HVDTRAIN_FAULTS_RECORD"
"""A folder: each test leaves a JSON file in it, from which `table.py` makes docs/faults.md."""

_MARK = "HVDTRAIN_TEST_RUN"


class DisturbedJob:
    """A running launcher; its output is in a file, its run folder is `out`.

    Attributes:
        detected_s: seconds from the last `strike` until `await_words` found them.
        message: the line that it found.
    """

    def __init__(self, folder: Path, flags: list[str], options: list[str], env: Mapping[str, str]) -> None:
        self.folder, self.out = folder, folder / "out"
        self.detected_s, self.message = 0.0, ""
        self._struck_at, self._mark = 0.0, uuid.uuid4().hex
        self._output = (folder / "output").open("ab")
        argv = [sys.executable, "-m", "hvdtrain", "launch", "local", *flags, "--", "train", *options]
        path = os.pathsep.join([str(TASKS), *filter(None, [os.environ.get("PYTHONPATH")])])
        environ = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
        self.process = subprocess.Popen(
            [*argv, "--progress", "none", *([] if "--output-dir" in options else ["--output-dir", "out"])],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**environ, "PYTHONPATH": path, _MARK: self._mark, **env},
        )

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def processes(self) -> list[int]:
        """All that this job has started and that runs."""
        mark = f"{_MARK}={self._mark}".encode()
        found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [process for process in found if mark in environ_of(process).split(b"\0")]

    def children_of(self, parent: int) -> list[int]:
        """Those of the job's processes that it has started, in any of its threads, in that order."""
        table = process_table()
        return sorted(process for process in self.processes() if process in table and table[process].parent == parent)

    def workers(self) -> list[int]:
        """Processes, in the order in which they were started: first that of rank 0."""
        return [process for process in self.children_of(self.process.pid) if b"HOROVOD_RANK=" in environ_of(process)]

    def await_lines(self, more: int = 3) -> None:
        """Until training has written further lines of metrics, and a checkpoint."""
        before = self._lines()
        latest = self.out / "checkpoints" / "latest"
        self.await_that(lambda: latest.exists() and self._lines() >= before + more, f"{more} further lines of metrics")

    def strike(self, fault: Callable[[], object]) -> None:
        """Do it, and remember when."""
        fault()
        self._struck_at = time.monotonic()

    def await_words(self, pattern: str, seconds: float = DEADLINE_S) -> None:
        """Until the output has them."""
        self.await_that(lambda: re.search(pattern, self.output) is not None, pattern, seconds, may_end=True)
        self.detected_s = time.monotonic() - self._struck_at
        self.message = next(line for line in self.output.splitlines() if re.search(pattern, line))

    def await_that(
        self, condition: Callable[[], bool], what: str, seconds: float = DEADLINE_S, may_end: bool = False
    ) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            ended = self.process.poll() is not None and not (may_end and condition())
            assert not ended or condition(), f"no {what}; exit code {self.process.returncode}\n{self.output}"
            assert time.monotonic() < deadline, f"no {what} within {seconds} s\n{self.output}"
            time.sleep(0.02)

    def stop(self, most_lost: int = 2 * INTERVAL) -> None:
        """End it in good order. Every record was used once in each finished epoch, and little was trained again.

        Args:
            most_lost: updates for each restart: since the last checkpoint, and while the next one is written.
        """
        self.process.send_signal(signal.SIGTERM)
        assert self.wait() == 75, self.output
        assert read_coverage(self.out).exact, self.output
        goodput = json.loads((self.out / "result.json").read_text())["goodput"]
        assert goodput["lost_steps"] <= most_lost * len(goodput["restarts"]), self.output

    def wait(self, seconds: float = DEADLINE_S) -> int:
        """The exit code; afterwards nothing runs."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the launcher did not end within {seconds} s\n{self.output}") from None
        deadline = time.monotonic() + GONE_S
        while self.processes():
            assert time.monotonic() < deadline, f"left behind: {self.processes()}\n{self.output}"
            time.sleep(0.02)
        return code

    def events(self, name: str) -> list[dict[str, Any]]:
        """Lines of metrics.jsonl of one event."""
        path = self.out / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in map(json.loads, lines) if line.get("event") == name]

    def lost_steps(self) -> int | None:
        """As result.json has them; None where there is none."""
        result = self.out / "result.json"
        return int(json.loads(result.read_text())["goodput"]["lost_steps"]) if result.exists() else None

    def close(self) -> None:
        """Whatever happened, nothing stays."""
        self.process.kill()
        self.process.wait(10)
        for process in self.processes():
            os.kill(process, signal.SIGKILL)
        self._output.close()

    def _lines(self) -> int:
        path = self.out / "metrics.jsonl"
        return path.read_text().count('"split": "train"') if path.exists() else 0


def undisturbed(folder: Path, workers: int, *options: str) -> Path:
    """The run folder of a training without faults, in a new `folder`."""
    folder.mkdir()
    job = DisturbedJob(folder, ["-np", str(workers)], list(options), {})
    try:
        assert job.wait() == 0, job.output
    finally:
        job.close()
    return job.out


def command_of(process: int) -> bytes:
    """Its command line; nothing of one that has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def environ_of(process: int) -> bytes:
    """Its variables, as it was started with them; nothing of one that has ended."""
    try:
        return Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return b""
