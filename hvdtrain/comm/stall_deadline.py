"""The last limit on a wait for other ranks, for when Horovod's own does not come.

Horovod looks for stalled collectives in the thread that also talks to the other ranks. If one of them is frozen as a
whole (SIGSTOP, a hung machine), that thread hangs in its message to it, and looks no more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

from hvdtrain.comm.ending import end_process
from hvdtrain.errors import HvdtrainError

Standing = Callable[[], object | None]
"""Where a block stands that computes too: something that stays equal during one wait, None while it does not wait."""

# Horovod acts up to one and a half times --stall-timeout after the stall, and says which ranks are missing.
_TIMES = 3.0
_AT_LEAST_MORE = 30.0


@final
class StallDeadline:
    """Ends this process where one wait outlasts the limit; its launcher then ends the others.

    Args:
        rank: for the message.
        stall_timeout: seconds, as --stall-timeout; the limit is thrice that, and half a minute more at least.
    """

    def __init__(self, rank: int, stall_timeout: float) -> None:
        self._rank = rank
        self._limit = max(_TIMES * stall_timeout, stall_timeout + _AT_LEAST_MORE)
        self._waits: dict[object, Standing] = {}  # several threads may wait
        threading.Thread(target=self._watch, name="hvdtrain-stall-deadline", daemon=True).start()

    @contextmanager
    def waiting(self, standing: Standing) -> Iterator[None]:
        """The block waits for other ranks, or `standing` says when it does."""
        wait = object()
        self._waits[wait] = standing
        try:
            yield
        finally:
            del self._waits[wait]

    def _watch(self) -> None:
        since: dict[object, float] = {}
        while True:
            time.sleep(min(1.0, self._limit / 10))
            now = time.monotonic()
            found = {(wait, standing()) for wait, standing in list(self._waits.items())}
            since = {wait: since.get(wait, now) for wait in found if wait[1] is not None}
            if since and now - min(since.values()) > self._limit:
                self._leave()

    def _leave(self) -> None:
        error = HvdtrainError(
            f"A collective has waited for other ranks for {self._limit:g} s.",
            "One of them is frozen as a whole, so Horovod's own stall check cannot end the job.",
            "look for the rank whose log ends first, and at its machine; the limit follows from --stall-timeout.",
        )
        end_process(self._rank, "stall", error, with_stacks=True)
