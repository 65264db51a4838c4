"""Signals that ask a job to stop, and the rule by which launcher and workers tell a second request from an echo."""

from __future__ import annotations

import signal
from enum import Enum
from typing import Final, final

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


@final
class StopRequests:
    """Counts the FINAL signals of one process."""

    def __init__(self) -> None:
        self._since: float | None = None

    def add(self, number: signal.Signals, now: float) -> Repeat:
        """Count a signal that came at `now`, in seconds of one clock."""
        if number not in FINAL:
            return Repeat.FIRST
        if self._since is None:
            self._since = now
            return Repeat.FIRST
        return Repeat.ECHO if now - self._since <= ECHO_SECONDS else Repeat.SECOND
