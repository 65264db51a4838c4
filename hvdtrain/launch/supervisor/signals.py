"""Signals to the launcher, as events of its loop, and what each of them means to the workers."""

import os
import select
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from types import FrameType
from typing import Any, Self

from hvdtrain.stop_requests import FINAL, Repeat, StopRequests

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Stop, stop, save and stop (Slurm's `--signal=USR1`), and: the terminal is gone."""


class SignalInbox:
    """Collects FORWARDED signals between entering and leaving; main thread only. What is ignored stays ignored: SIGHUP
    under nohup, SIGINT in a job that a script's shell runs in the background."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._before: dict[signal.Signals, Any] = {}
        self._wakeup_before = -1
        self._waiting: list[signal.Signals] = []

    def __enter__(self) -> Self:
        self._wakeup_before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in FORWARDED:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._before[number] = signal.signal(number, _noted)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._reading)
        os.close(self._writing)

    def fileno(self) -> int:
        """Readable when a signal has come."""
        return self._reading

    def wake(self) -> None:
        """Make `fileno` readable from another thread, without a signal."""
        with suppress(BlockingIOError):  # full, so readable already
            os.write(self._writing, b"\0")

    def take(self) -> list[signal.Signals]:
        self._read()
        taken, self._waiting = self._waiting, []
        return taken

    def has_signal(self) -> bool:
        """Whether `take` would return one. `fileno` is not readable after that, until something new comes."""
        self._read()
        return bool(self._waiting)

    def _read(self) -> None:
        try:
            numbers: Iterable[int] = os.read(self._reading, 4096)
        except BlockingIOError:
            return
        self._waiting += [signal.Signals(number) for number in numbers if number in FORWARDED]

    def sleep(self, seconds: float) -> signal.Signals | None:
        """Sleep, but wake when a signal comes, and return it."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            select.select([self], [], [], left)
            if signals := self.take():
                return signals[0]
        return None


class SignalAction(Enum):
    """What the launcher does about a signal."""

    FORWARD = "send it to the workers"
    IGNORE = "the workers know already"
    KILL = "kill the workers at once"


class SignalPolicy:
    """Chooses the action for each signal to the launcher, by the rule of `hvdtrain.stop_requests`. `stopped_by`: the
    request to stop, once one has come; SIGTERM or SIGINT replaces a notice before it."""

    def __init__(self) -> None:
        self.stopped_by: signal.Signals | None = None
        self._requests = StopRequests()
        self._forwarded = False  # whether workers got a signal that would end them if it came again

    def action(self, number: signal.Signals, now: float) -> SignalAction:
        """For a signal that came at `now`, in seconds of one clock."""
        repeat = self._requests.add(number, now)
        if repeat is Repeat.SECOND:
            return SignalAction.KILL
        if self.stopped_by is None or (number in FINAL and self.stopped_by not in FINAL):
            self.stopped_by = number
        if number == signal.SIGUSR1:
            return SignalAction.FORWARD
        if repeat is Repeat.ECHO or self._forwarded:
            return SignalAction.IGNORE
        self._forwarded = True
        return SignalAction.FORWARD


def for_workers(number: signal.Signals) -> signal.Signals:
    """The signal that workers get: SIGTERM where the terminal is gone, which they do not listen for themselves."""
    return signal.SIGTERM if number == signal.SIGHUP else number


def _noted(_number: int, _frame: FrameType | None) -> None:
    """The wake-up descriptor has the number already."""
