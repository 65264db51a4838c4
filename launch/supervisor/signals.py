"""Signals to the launcher, as events of its loop."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType
from typing import Any, Self, final

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Stop, stop, save and stop (Slurm's `--signal=USR1`), the terminal is gone."""


@final
class SignalInbox:
    """Collects FORWARDED signals between entering and leaving; main thread only."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._before: dict[signal.Signals, Any] = {}
        self._wakeup_before = -1

    def __enter__(self) -> Self:
        self._wakeup_before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in FORWARDED:
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
        """The signals that came since the last call."""
        try:
            numbers: Iterable[int] = os.read(self._reading, 4096)
        except BlockingIOError:
            return []
        return [signal.Signals(number) for number in numbers if number in FORWARDED]

    def wait(self, seconds: float) -> signal.Signals | None:
        """Sleep, or less: until a signal comes."""
        ready, _, _ = select.select([self], [], [], seconds)
        signals = self.take() if ready else []
        return signals[0] if signals else None


def _noted(_number: int, _frame: FrameType | None) -> None:
    """The wake-up descriptor has the number already."""
