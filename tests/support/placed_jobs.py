"""A training under a launcher whose places a cluster gives (Ray, Spark), which a test watches, disturbs and stops."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from support.jobs import WORKERS
from support.process_table import command_of, environ_of
from support.processes import Finished, Spawned, environment, python_path
from support.runs import trained_lines

ROOT = Path(__file__).parents[2]
DEADLINE_S = 180.0
GONE_S = 20.0


class PlacedJob(Spawned):
    """A running launcher of `hvdtrain train`, with the run folder `out`.

    Args:
        launcher: words after `hvdtrain launch`: its name, and where its cluster is.
        await_empty: waits until the cluster has all back.
    """

    def __init__(
        self,
        launcher: Sequence[str],
        await_empty: Callable[[], object],
        folder: Path,
        flags: Sequence[str],
        options: Sequence[str],
    ) -> None:
        self._await_empty, self.out = await_empty, folder / "out"
        train = ["train", "--output-dir", "out", "--progress", "none", *options]
        argv = [sys.executable, "-m", "hvdtrain", "launch", *launcher, *flags, "--", *train]
        super().__init__(argv, environment(python_path(ROOT, WORKERS)), folder)

    def workers(self) -> list[int]:
        """Processes of the ranks, in the order of their ranks."""
        lines = {process: command_of(process) for process in self.processes()}
        found = [process for process, line in lines.items() if b"\0train\0" in line and b"\0launch\0" not in line]
        return sorted(found, key=lambda process: [v for v in environ_of(process).split(b"\0") if b"HOROVOD_RANK=" in v])

    def await_lines(self, more: int = 3) -> None:
        """Until that many more lines of metrics are there, and a checkpoint."""
        before = trained_lines(self.out)
        latest = self.out / "checkpoints" / "latest"
        self.await_that(lambda: latest.exists() and trained_lines(self.out) >= before + more, "lines", DEADLINE_S)

    def ended(self, code: int, seconds: float = DEADLINE_S) -> Finished:
        """It has ended with that code; nothing of it runs, and the cluster has all back."""
        done = self.wait(seconds)
        assert done.returncode == code, done.tail()
        self.require_gone(GONE_S)
        self._await_empty()
        return done
