"""The disturbed job: `hvdtrain launch local`, its worker processes, and the run folder that it writes."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hvdtrain.errors import UsageError
from hvdtrain.launch.processes.orphan_reaper import descendants, process_table
from hvdtrain.launch.supervisor.restarts import option_value, trains


class Job:
    """Starts the launcher, and again where it has ended with a checkpoint.

    Args:
        restarts: how often the launcher may start `size` workers again.
        least: with how few the others go on while one is missing; None: all are started again.
        command: `train …`, with --output-dir.

    Raises:
        UsageError: the command trains nothing.
    """

    def __init__(self, size: int, restarts: int, command: Sequence[str], least: int | None = None) -> None:
        whole = [sys.executable, "-m", "hvdtrain", *command]
        folder = option_value(whole, "output-dir")
        if not trains(whole) or folder is None:
            raise UsageError(
                f"The command to disturb is `{' '.join(command)}`.",
                "A training with a run folder is needed, to continue in it.",
                "write hvdtrain chaos -np 2 -- train --output-dir RUN.",
            )
        self.folder = Path(folder)
        self.size = size
        self._argv = [sys.executable, "-m", "hvdtrain", "launch", "local", "-np", str(size)]
        self._argv += ["--max-restarts", str(restarts), "--backoff", "0.2"]
        self._argv += [*([] if least is None else ["--min-workers", str(least)]), "--", *command]
        self.starts = 0
        self.launcher: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the launcher, which ends with this process."""
        self.starts += 1
        self.launcher = subprocess.Popen(self._argv)

    def worker(self, rank: int) -> int | None:
        """The process of `rank`, as they were started: ranks may change. None while there are not so many."""
        if self.launcher is None:
            return None
        launcher, table = self.launcher.pid, process_table()
        children = sorted(process for process, seen in table.items() if seen.parent == launcher)
        workers = [child for child in children if _variable(child, "HOROVOD_RANK") is not None]
        return workers[rank] if rank < len(workers) else None

    def processes(self, rank: int) -> list[int]:
        """The process of `rank` and all that it has started."""
        first = self.worker(rank)
        return [] if first is None else [first, *sorted(descendants(first, (), process_table()))]

    @property
    def trained_lines(self) -> int:
        """Lines of training in metrics.jsonl: while this number grows, training goes on."""
        path = self.folder / "metrics.jsonl"
        return path.read_bytes().count(b'"split": "train"') if path.exists() else 0

    def checkpoints(self) -> list[Path]:
        """The oldest first."""
        return sorted((self.folder / "checkpoints").glob("step_*"))

    def end(self) -> None:
        """Whatever happens, no process stays."""
        if self.launcher is not None and self.launcher.poll() is None:
            for rank in range(self.size):
                send(self.worker(rank), signal.SIGCONT)
            self.launcher.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.launcher.wait(30)
            self.launcher.kill()  # its workers end with it
            self.launcher.wait()


def send(process: int | None, number: signal.Signals) -> bool:
    """Whether the process was still there."""
    if process is None:
        return False
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return False
    return True


def _variable(process: int, name: str) -> str | None:
    try:
        words = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), None)
