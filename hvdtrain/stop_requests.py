"""Signals that ask a job to stop, noted while it runs, and the rule that tells a second request from an echo.

A thread reads the numbers from a pipe into which Python's own signal handler writes them. So a second request ends the
process even while its main thread waits in a collective for a rank that will not come, where no Python code runs.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from types import FrameType
from typing import Any, Final, Self

from hvdtrain.log_flush import close_logs_before_exit

REQUESTS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""Slurm, Kubernetes and launchers send SIGTERM, a terminal SIGINT, Slurm's `--signal=USR1@…` SIGUSR1."""

FINAL: Final = (signal.SIGTERM, signal.SIGINT)
"""A second one means: now. SIGTERM after SIGUSR1 is a first one: with Slurm the time limit follows the notice."""

ECHO_SECONDS: Final = 1.0
"""A terminal, `kill -- -GROUP` and Slurm signal launcher and worker, and the launcher passes it on: one request."""


class Repeat(Enum):
    """What a signal is, after those that came before."""

    FIRST = "the first request, or one that may be repeated"
    ECHO = "the first request again, by another way"
    SECOND = "a second request"


class StopRequests:
    """Counts the FINAL signals of one process."""

    def __init__(self) -> None:
        self._since: float | None = None

    def add(self, number: signal.Signals, now: float) -> Repeat:
        if number not in FINAL:
            return Repeat.FIRST
        if self._since is None:
            self._since = now
            return Repeat.FIRST
        return Repeat.ECHO if now - self._since <= ECHO_SECONDS else Repeat.SECOND


class StopSignals:
    """Notes REQUESTS between entering and leaving. Outside of the main thread, and for ignored signals, does nothing.

    `answers`: whether it tells a terminal's user at once that SIGINT was heard, as one process of a job should.
    `then`: what it says will happen next.
    `at_second` is called with the cause and the exit code before a second request ends the process. `ends_process`:
    an exception that leaves the block ends the process, too, so requests are only noted until then. A launcher sends
    SIGTERM to a worker that has lost another one, and would end it before it has said why it ends.
    """

    def __init__(
        self,
        who: str,
        answers: bool,
        at_second: Callable[[str, int], object] | None = None,
        ends_process: bool = False,
        then: str = "saving a checkpoint before it ends",
    ) -> None:
        self._then = then
        self.who = who
        self.answers = answers
        self._at_second = at_second
        self._ends_process = ends_process
        self._noted: signal.Signals | None = None
        self._requests = StopRequests()
        self._before: dict[signal.Signals, Any] = {}

    def asked(self) -> str | None:
        """The name of the first request, once one has come."""
        return self._noted.name if self._noted is not None else None

    def __enter__(self) -> Self:
        wanted = [number for number in REQUESTS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
        if threading.current_thread() is threading.main_thread() and wanted:
            self._install(wanted)
        return self

    def __exit__(self, kind: object, *_exception: object) -> None:
        if not self._before or (kind is not None and self._ends_process):
            return
        self._restore()
        os.close(self._writing)
        self._reader.join()
        os.close(self._reading)

    def _install(self, wanted: list[signal.Signals]) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._wakeup_before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, _noted_by_thread) for number in wanted}
        os.register_at_fork(after_in_child=self._restore)
        self._reader = threading.Thread(target=self._read, name="stop-signals", daemon=True)
        self._reader.start()

    def _restore(self) -> None:
        """Also in a forked child: its signals are not its parent's, and it must end by those that end a process."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before:
            signal.set_wakeup_fd(self._wakeup_before)
        self._before = {}

    def _read(self) -> None:
        while numbers := os.read(self._reading, 64):
            for number in numbers:
                if number in REQUESTS:
                    self._note(signal.Signals(number))

    def _note(self, number: signal.Signals) -> None:
        if self._noted is None:
            self._noted = number
            if number == signal.SIGINT and self.answers:
                _say(f"{self.who}: interrupted; {self._then}. Once more ends it at once.")
        if self._requests.add(number, time.monotonic()) is Repeat.SECOND:
            _say(f"{self.who}: {number.name} came again; leaving at once, older checkpoints are intact.")
            if self._at_second is not None:
                self._at_second(f"{number.name} came again", 128 + number)
            close_logs_before_exit()
            os._exit(128 + number)  # the main thread may be stuck, or in the middle of a save that is to be torn


def _noted_by_thread(_number: int, _frame: FrameType | None) -> None:
    """The pipe has the number already."""


def _say(line: str) -> None:
    """One write to standard error, whatever the main thread is writing: a bar may be on the cursor's line."""
    with suppress(OSError):
        os.write(2, f"\n{line}\n".encode())
