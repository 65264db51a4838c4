"""Watch over the workers of one start: pass on what they write, and end all of them when one fails."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import IO, final

from launch.process import Worker
from launch.process_memory import out_of_memory_kills
from launch.supervisor_console import ERR, OUT, Console
from launch.supervisor_signals import SignalInbox
from launch.supervisor_verdict import RESUMABLE, USAGE, Outcome, judge, quoted

OWN_WORDS_SECONDS = 3.0
"""After the first failure the others have this long to notice it, and to say so."""

_LAST_READS = 64  # a pipe holds less, unless a child of the worker goes on writing

_HOLD_SECONDS = 10.0  # the longest that other ranks' lines are kept before all ranks have met


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: until all ranks are connected (None: not watched), and from a forwarded signal to SIGKILL."""

    start: float | None
    grace: float


@final
class Supervisor:
    """One start of a job.

    Args:
        workers: all ranks, started.
        console: where their output goes.
        inbox: signals to the launcher.
        limits: how long to wait for what.
        connected: ranks that are connected to all others.
        arrived: ranks that have begun to connect.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        console: Console,
        inbox: SignalInbox,
        limits: Limits,
        connected: Callable[[], frozenset[int]],
        arrived: Callable[[], frozenset[int]],
    ) -> None:
        self._workers = workers
        self._console = console
        self._inbox = inbox
        self._limits = limits
        self._connected = connected
        self._arrived = arrived
        self._selector = selectors.DefaultSelector()
        self._ended = 0
        begin = time.monotonic()
        self._start_by = None if limits.start is None else begin + limits.start
        self._hold_until: float | None = begin + _HOLD_SECONDS
        self._kill_at: float | None = None
        self._stopped_by: signal.Signals | None = None
        self._late: Outcome | None = None

    def run(self) -> Outcome:
        """Return when every worker has ended."""
        kills_before = out_of_memory_kills()
        with self._selector:
            self._watch()
            while self._ended < len(self._workers):
                for key, _ in self._selector.select(self._until_next_deadline()):
                    key.data()
                self._act_on_deadlines()
        ran_out = out_of_memory_kills() > kills_before
        outcome = self._late or judge(self._workers, self._stopped_by, ran_out)
        self._speak(outcome)
        return outcome

    def _watch(self) -> None:
        self._selector.register(self._inbox, selectors.EVENT_READ, self._on_signals)
        for worker in self._workers:
            self._selector.register(worker.pidfd, selectors.EVENT_READ, partial(self._on_end, worker))
            for stream, pipe in zip((OUT, ERR), worker.pipes, strict=True):
                self._selector.register(pipe, selectors.EVENT_READ, partial(self._on_output, worker, stream, pipe))

    def _on_output(self, worker: Worker, stream: int, pipe: IO[bytes]) -> None:
        data = worker.read(pipe)
        if data:
            self._console.take(worker.rank, stream, data)
        elif data == b"":
            self._forget(pipe)

    def _on_end(self, worker: Worker) -> None:
        self._selector.unregister(worker.pidfd)
        for stream, pipe in zip((OUT, ERR), worker.pipes, strict=True):
            for data in takewhile(bool, (worker.read(pipe) for _ in range(_LAST_READS))):
                self._console.take(worker.rank, stream, data or b"")
            self._forget(pipe)
        self._console.finish(worker.rank)
        ended = worker.reap(self._ended)
        self._ended += 1
        if ended.failed and self._kill_at is None:
            # Who leaves with 75 has saved; others may still be writing.
            seconds = self._limits.grace if ended.code == RESUMABLE else OWN_WORDS_SECONDS
            self._kill_at = time.monotonic() + seconds
            self._start_by = None

    def _forget(self, pipe: IO[bytes]) -> None:
        if pipe in self._selector.get_map():
            self._selector.unregister(pipe)

    def _on_signals(self) -> None:
        if self._hold_until is not None and len(self._connected()) == len(self._workers):
            self._all_have_met()
        for number in self._inbox.take():
            self._forward(number)

    def _forward(self, number: signal.Signals) -> None:
        """The first one begins the grace; a second SIGINT or SIGTERM ends it."""
        again = self._stopped_by is not None and number in (signal.SIGINT, signal.SIGTERM)
        for worker in self._workers:
            worker.kill() if again else worker.send(number)
        if self._stopped_by is None:
            self._stopped_by = number
            self._kill_at = time.monotonic() + self._limits.grace
            self._start_by = None

    def _all_have_met(self) -> None:
        self._hold_until = None
        self._start_by = None
        self._console.release_all()

    def _until_next_deadline(self) -> float | None:
        deadlines = [at for at in (self._start_by, self._hold_until, self._kill_at) if at is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _act_on_deadlines(self) -> None:
        now = time.monotonic()
        if self._hold_until is not None and now >= self._hold_until and self._kill_at is None:
            self._hold_until = None
            self._console.release_all()
        if self._start_by is not None and now >= self._start_by:
            self._start_by = None
            self._late = self._nobody_waits_longer()
            self._kill_at = now
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            for worker in self._workers:
                worker.kill()

    def _nobody_waits_longer(self) -> Outcome:
        size, limit = len(self._workers), self._limits.start
        missing = sorted(set(range(size)) - self._arrived()) or sorted(set(range(size)) - self._connected())
        named = ", ".join(f"rank {rank} (process {self._workers[rank].process.pid})" for rank in missing)
        return Outcome(
            1,
            missing[0],
            f"hvdtrain launch: {named} did not join the other ranks within {limit:g} seconds. "
            f"{quoted(self._workers[missing[0]])}\n"
            "HINT: if it only needs longer to begin, give --start-timeout more seconds.",
            may_restart=True,
        )

    def _speak(self, outcome: Outcome) -> None:
        if outcome.code == USAGE and outcome.culprit is not None:
            self._console.release(outcome.culprit)
            self._console.drop_held()
        self._console.release_all()
        if outcome.message:
            self._console.say(outcome.message)
