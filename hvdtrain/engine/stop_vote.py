"""What all ranks agree on: to stop after the same step, to save after the same step, and that a save has ended.

A request to stop reaches one rank or all, at different moments. Each rank puts what it knows into an allreduce that is
started after some step and read some steps later, when it has finished; so no rank waits, and all stop after the same
step. How many steps are between the two follows from the reduced time of a step, and is the same on all ranks.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import broadcast_json, ranks_where

StopRequest = Callable[[], str | None]  # why this rank should stop, in a word or two; None while it should not

VOTE_SECONDS: Final = 0.4  # between two votes. Training stops at most two intervals and a step after a request

LONGEST_INTERVAL: Final = 32
"""Steps between two votes at most: bounds the delay where steps suddenly take much longer than before."""

_VOTES: Final = -1
"""What each rank that votes says. A rank that has joined says 0, which is more."""

_NAMED_RANKS: Final = 4
_NAMED_REASONS: Final = 8


SaveReport = Callable[[], tuple[bool, int]]
"""Whether a checkpoint is due by the clock, which one rank says once for each, and how many have ended here."""


def never_asked() -> str | None:
    """For loops that nobody stops."""
    return None


@dataclass(eq=False)
class StopVote:
    """Whether to stop: the same answer on all ranks after the same step.

    In a loop where ranks join (`hvd.join()`) none may have a vote under way then, and none may stop without those that
    have joined: there `at_once` reads each vote when it is posted, and requests wait until all ranks vote again.
    """

    comm: Communicator
    asked: StopRequest
    saves: SaveReport = lambda: (False, 0)  # nothing is saved
    at_once: bool = False

    def __post_init__(self) -> None:
        self._pending: Callable[[], NDArray[Any]] | None = None
        self._interval = 1
        self._steps = 0
        self._posted_at = time.perf_counter()
        self.decided = False  # whether all ranks have agreed to stop. Stays True
        self.save_is_due = False  # whether all ranks are to save after the step that was voted on last
        self.saves_ended = 0  # how many checkpoints have ended on all ranks

    def open(self) -> bool:
        """Vote now and wait for it: requests may have come while ranks started. Collective."""
        self._post()
        self._read()
        if not (self.decided or self.at_once):
            self._post()
        return self.decided

    def after_step(self, steps: int = 1) -> bool:
        """Count a call of the adapter with `steps` updates, or a batch of validation; returns `decided`. Collective."""
        if self.decided:
            return True
        self._steps += steps
        self.save_is_due = False
        if not self.comm.topology.is_distributed:
            self.decided = self.asked() is not None
            self.save_is_due, self.saves_ended = self.saves()
        elif self._steps >= self._interval and self.at_once:
            self._post()
            self._read()
        elif self._steps >= self._interval:
            self._read()
            if not self.decided:
                self._post()
        return self.decided

    def close(self) -> None:
        """Wait for a vote that is under way; its answer comes too late. Collective."""
        if self._pending is not None:
            self._pending()
            self._pending = None

    def reason(self) -> str:
        """What asked whom to stop, for people: "SIGTERM (rank 1)". Collective."""
        untold = self.asked()
        if not self.comm.topology.is_distributed:
            return untold or ""
        parts: list[str] = []
        while ranks := ranks_where(self.comm, untold is not None, "hvdtrain.stop.asked"):
            reason = broadcast_json(self.comm, untold, "hvdtrain.stop.reason", ranks[0])
            same = ranks_where(self.comm, untold == reason, "hvdtrain.stop.same")
            parts.append(f"{reason} ({_named(same, self.comm.topology.size)})")
            if len(parts) == _NAMED_REASONS:
                break
            untold = None if untold == reason else untold
        return ", ".join(parts)

    def _post(self) -> None:
        now = time.perf_counter()
        step_nanoseconds = (now - self._posted_at) * 1e9 / max(1, self._steps)
        self._posted_at, self._steps = now, 0
        is_due, ended = self.saves()
        # Integers: Horovod refuses Max of other numbers while a rank has joined. Of `ended` the least is wanted.
        ballot = np.array([self.asked() is not None, step_nanoseconds, is_due, -ended, _VOTES], np.int64)
        self._pending = self.comm.start_allreduce(ballot, "hvdtrain.stop.vote", "max")

    def _read(self) -> None:
        if self._pending is None:
            raise RuntimeError("open() comes before the first step")
        stop, step_nanoseconds, save, minus_ended, votes = self._pending().tolist()
        self._pending = None
        self.save_is_due, self.saves_ended = bool(save), -minus_ended
        self.decided = bool(stop) and votes == _VOTES
        self._interval = next_interval(self._interval, step_nanoseconds / 1e9)


def next_interval(interval: int, step_seconds: float) -> int:
    """Steps until the next vote: VOTE_SECONDS' worth. It grows slowly: the first steps may not have been waited for."""
    fitting = int(VOTE_SECONDS / step_seconds) if step_seconds > 0 else LONGEST_INTERVAL
    return max(1, min(fitting, 2 * interval, LONGEST_INTERVAL))


def _named(ranks: list[int], size: int) -> str:
    if len(ranks) == size:
        return "all ranks"
    named = ", ".join(map(str, ranks[:_NAMED_RANKS])) + (", …" if len(ranks) > _NAMED_RANKS else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {named}"
