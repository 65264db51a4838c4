"""The records of coming steps, asked for before they are needed: a step from remote files waits for the network."""

import threading
import time
from collections.abc import Callable
from typing import Final

from data_sharding.errors import PlanError
from data_sharding.formats.record_format import RecordBatch
from data_sharding.loading.prefetch import OrderedPrefetch

READ_AHEAD_BYTES: Final = 64 << 20
"""Payloads that are there or on their way, ahead of decoding."""

_MOST_STEPS: Final = 16
_FIRST_STEPS: Final = 1
_GAIN: Final = 1.1
_WINDOWS: Final = 16


class Width:
    """How many steps to read at a time: doubled for as long as that makes them come faster, and they are waited for.

    Where a step takes few requests, each one more under way is worth as much as the one before, up to the bandwidth.
    Where it takes many, more under way would only delay the first of them: the process that asks is busy already.
    """

    def __init__(self) -> None:
        self.steps = _FIRST_STEPS
        self._rate_before = 0.0
        self._rest = 0  # windows in which nothing is tried
        self._begin, self._taken, self._waits = 0.0, 0, 0

    def note(self, waited: bool, now: float) -> int:
        """A step was taken at `now`, in seconds, after a wait or not; how many are to be under way from now on."""
        if not self._taken:
            self._begin = now
        self._taken += 1
        self._waits += waited
        if self._taken > 4 * self.steps:
            self._judge((self._taken - 1) / max(now - self._begin, 1e-9))
            self._begin, self._taken, self._waits = now, 0, 0
        return self.steps

    def _judge(self, rate: float) -> None:
        if self._rest:
            self._rest -= 1
        elif 2 * self._waits < self._taken or (self.steps == _MOST_STEPS and _GAIN * rate > self._rate_before):
            self._rate_before = rate
        elif rate > _GAIN * self._rate_before:
            self._rate_before, self.steps = rate, min(2 * self.steps, _MOST_STEPS)
        else:
            self._rate_before, self._rest, self.steps = 0.0, _WINDOWS, max(self.steps // 2, 1)


class StepReads:
    """Calls `read` for the steps from `start` on, several at a time; `get` gives each step's records once.

    What is there or on its way has at most `budget` bytes, and one step more. Raises as `OrderedPrefetch`.
    """

    def __init__(
        self, read: Callable[[int], RecordBatch], start: int, stop: int, *, budget: int, timeout_s: float
    ) -> None:
        self._reads = OrderedPrefetch(
            read,
            start,
            stop,
            depth=budget,
            threads=_MOST_STEPS,
            timeout_s=timeout_s,
            name="The loader's reading ahead",
            weigh=lambda records: max(1, sum(map(len, records.payloads))),
            first_guess=budget // 2,  # two of unknown size, then as many as fit
        )
        self._width = Width()
        self._reads.widen(self._width.steps)
        self._lock = threading.Lock()
        self._next = start
        self._ready: dict[int, RecordBatch | BaseException] = {}

    def get(self, step: int) -> RecordBatch:
        """The records of a step, or what `read` raised for it."""
        with self._lock:
            self._reads.start()
            while step not in self._ready:
                self._take(step)
            records = self._ready.pop(step)
        if isinstance(records, BaseException):
            raise records
        return records

    def cancel(self) -> None:
        """End its threads after what they are doing now, without waiting for them."""
        self._reads.cancel()

    def abandon(self) -> None:
        """As `cancel`; and `close` waits for no thread any more."""
        self._reads.abandon()

    def close(self) -> None:
        """End its threads and wait for them. Raises LoaderTimeoutError."""
        self._reads.close()

    def _take(self, wanted: int) -> None:
        waited = not self._reads.is_ready
        try:
            self._ready[self._next] = self._reads.take()
        except StopIteration:
            raise
        except BaseException as error:
            self._ready[self._next] = error
            if self._next != wanted:  # of this one nobody hears: the earlier step's error comes first
                raise PlanError(f"Step {wanted} was not read.", "An earlier one failed.", "see its error.") from None
            return
        self._next += 1
        before = self._width.steps
        if (width := self._width.note(waited, time.monotonic())) != before:
            self._reads.widen(width)
