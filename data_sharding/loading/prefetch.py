"""Results computed ahead of time by background threads, delivered in order."""

import sys
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from data_sharding.errors import LoaderTimeoutError, PlanError

T = TypeVar("T")

_MOST_TOGETHER: Final = 64
_Result = tuple[T | None, BaseException | None, int]
"""What was made, or what was raised instead, and the weight."""


class OrderedPrefetch(Generic[T]):
    """Calls `produce(i)` for i in [start, stop) in background threads; `take()` returns the results in that order.

    Results that are ready or in the making ahead of the consumer weigh at most `depth`, each 1 by default. An exception
    in `produce(i)` is raised by the take() of i, after all results before it. Threads begin at `start()` and are
    daemons: a read that never returns cannot keep a failing process alive.

    Args:
        timeout_s: longest wait of take() for one result, and of close() for the threads, in seconds.
        name: what errors call this.
        weigh: what a result that is ready counts for; one in the making counts for as much as the last one did.
        first_guess: what one in the making counts for before there was any.
        run_s: seconds for which a thread that has found room works before it looks for room again, whatever the depth:
            each wait costs two switches between threads that want the GIL.
        produce_several: makes several results at once, in less time than one by one. If it raises an exception, they
            are made one by one, so that it is raised at its own place.
    """

    def __init__(
        self,
        produce: Callable[[int], T],
        start: int,
        stop: int,
        *,
        depth: int,
        threads: int,
        timeout_s: float,
        name: str = "The loader",
        weigh: Callable[[T], int] = lambda _: 1,
        first_guess: int = 1,
        run_s: float = 0.0,
        produce_several: Callable[[range], list[T]] | None = None,
    ) -> None:
        self._name, self._weigh, self._run_s, self._produce_several = name, weigh, run_s, produce_several
        self._produce, self._stop, self._depth, self._timeout_s = produce, stop, depth, timeout_s
        self._limit_s = min(timeout_s, threading.TIMEOUT_MAX)
        self._guess = first_guess
        self._working, self._width = 0, threads
        self._held = 0  # weight of what is ready or in the making
        self._next_made = self._next_taken = start
        # Reentrant (as Condition's default is): cancel() may run in a garbage collection inside any of the methods.
        self._changed = threading.Condition()
        self._results: dict[int, _Result[T]] = {}
        self._cancelled = self._given_up = self._is_awaited = False
        self._failure = ""  # no exception: its traceback would keep the consumer alive
        self._threads = [
            threading.Thread(target=self._work, name=f"data_sharding-{number}", daemon=True)
            for number in range(min(threads, depth, max(stop - start, 0)))
        ]

    def start(self) -> None:
        """Start the threads. Later calls do nothing."""
        for thread in self._threads:
            if thread.ident is None:
                thread.start()

    def take(self) -> T:
        """The next result, or what `produce` raised. StopIteration, LoaderTimeoutError; PlanError once closed."""
        with self._changed:
            if self._next_taken >= self._stop:
                raise StopIteration
            index = self._next_taken
            if index not in self._results:
                self._is_awaited = True
                self._changed.wait_for(lambda: self._cancelled or index in self._results, self._limit_s)
                self._is_awaited = False
            if self._cancelled:
                fact = f"{self._name} is closed{self._failure or '.'}"
                raise PlanError(fact, "It reads no more.", "make another one.")
            if index not in self._results:
                self._given_up = True
                raise self._timeout(f"Batch {index} was not ready after {self._timeout_s:g} seconds.")
            value, error, weight = self._results.pop(index)
            if error is not None:
                reason = str(error).partition("\n")[0]
                self._failure = f": batch {index} ended it with {type(error).__name__}: {reason}"
                self.cancel()
                raise error
            self._next_taken += 1
            self._held -= weight
            if self._held < self._depth:
                self._changed.notify_all()
            return value  # type: ignore[return-value]

    def widen(self, width: int) -> None:
        """Let so many of the threads work at a time from now on."""
        with self._changed:
            self._width = width
            self._changed.notify_all()

    def cancel(self) -> None:
        """Tell the threads to end after what they are doing now, without waiting for them."""
        with self._changed:
            self._cancelled = True
            self._results.clear()
            self._changed.notify_all()

    def abandon(self) -> None:
        """As `cancel`; and `close` waits for no thread any more."""
        self._given_up = True
        self.cancel()

    def close(self) -> None:
        """End the threads and wait for them. May be called twice. Raises LoaderTimeoutError."""
        self.cancel()
        deadline = time.monotonic() + (0 if self._given_up else self._timeout_s)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        if not self._given_up and self.is_busy:
            raise self._timeout(f"A thread was still reading {self._timeout_s:g} seconds after it was told to stop.")

    def _work(self) -> None:
        together = 1
        while True:
            with self._changed:
                # No deadline: the wait lasts as long as the consumer's own work, and ends with close() or cancel().
                self._changed.wait_for(lambda: self._is_over() or self._has_room())
                if self._is_over():
                    return
                indices = range(self._next_made, min(self._next_made + together, self._stop))
                self._next_made = indices.stop
                promised = len(indices) * self._guess
                self._held += promised
                self._working += 1
            begin = time.perf_counter()
            results = self._made(indices)
            with self._changed:
                self._working -= 1
                if not self._cancelled:
                    self._results.update(zip(indices, results, strict=False))
                    weight = sum(weight for _, _, weight in results)
                    self._held += weight - promised
                    self._guess = results[-1][2]
                    if self._is_awaited or weight < promised or self._width < len(self._threads):
                        self._changed.notify_all()
            each_s = max(time.perf_counter() - begin, 1e-9) / len(indices)
            together = min(max(int(self._run_s / each_s), 1), _MOST_TOGETHER)

    def _made(self, indices: range) -> list[_Result[T]]:
        """Results of these, or of the first ones, of which the last is an error."""
        if self._produce_several is None or len(indices) == 1:
            return self._made_singly(indices)
        try:
            return [(value, None, self._weigh(value)) for value in self._produce_several(indices)]
        except BaseException as raised:  # SystemExit too
            together = raised
        # Not in the handler, for what it raises would be told twice. Each by itself tells which of them it is.
        results = self._made_singly(indices)
        if results[-1][1] is None:  # now none of them fails: what went wrong once is an error all the same
            return [(None, together, self._depth)]
        return results

    def _made_singly(self, indices: range) -> list[_Result[T]]:
        results: list[_Result[T]] = []
        for index in indices:
            try:
                value = self._produce(index)
                results.append((value, None, self._weigh(value)))
            except BaseException as raised:  # handed to the consumer, whatever it is: a thread must not die unseen
                return [*results, (None, raised, self._depth)]
        return results

    @property
    def is_ready(self) -> bool:
        """Whether `take` returns at once."""
        return self._next_taken in self._results

    @property
    def is_busy(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _has_room(self) -> bool:
        return self._held < self._depth and self._working < self._width

    def _is_over(self) -> bool:
        return self._cancelled or self._next_made >= self._stop

    def _timeout(self, fact: str) -> LoaderTimeoutError:
        frames = sys._current_frames()
        at = [frames[thread.ident] for thread in self._threads if thread.ident in frames]
        doing = ", ".join(f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in at)
        conflict = f"Its threads are at {doing}." if at else "None of its threads is alive."
        return LoaderTimeoutError(fact, conflict, "check the storage and the decode function, or allow more time.")
