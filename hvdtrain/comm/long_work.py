"""Work for which other ranks wait longer than a collective may take: indexing data, writing a checkpoint."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar, final

import numpy as np

from hvdtrain.comm.deadlines import end_process
from hvdtrain.comm.interface import Communicator
from hvdtrain.errors import HvdtrainError

T = TypeVar("T")

START_SECONDS: Final = 7200.0
"""Limit on what a rank does alone at the start. Longer than a catalog is waited for, whose message says more."""

SAVE_SECONDS: Final = 1800.0
"""Limit on writing a checkpoint, or the account of records before it."""

_BEAT_SECONDS: Final = 0.5  # the shortest --stall-timeout is 2 s


def do_while_others_wait(comm: Communicator, work: Callable[[], T], name: str, limit: float) -> T:
    """Do `work`, which may take longer here than on other ranks. Collective; returns once every rank has done its own.

    Ranks that are done wait in short collectives, one after the other, in which those that still work take part by a
    thread. So --stall-timeout holds for ranks that are frozen or gone, and `work` has a limit of its own.

    Args:
        comm: the other ranks.
        work: this rank's. It runs no collectives.
        name: of the collectives.
        limit: seconds after which a rank that still works ends, and with it the job.

    Raises:
        PeerError: another rank has ended; `work` is done all the same.
    """
    if not comm.topology.is_distributed:
        return work()
    beats = _Beats(comm, f"{name}.done", limit)
    try:
        result = work()
    finally:
        beats.stopping.set()
    beats.join()
    while _somebody_works(comm, f"{name}.done", False):
        pass
    return result


def _somebody_works(comm: Communicator, name: str, self_too: bool) -> bool:
    return bool(comm.allreduce(np.array([self_too], np.int32), name, "max")[0])


@final
class _Beats:
    """Tells the other ranks at intervals that this one still works."""

    def __init__(self, comm: Communicator, name: str, limit: float) -> None:
        self._comm, self._name, self._limit = comm, name, limit
        self._error: Exception | None = None
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="hvdtrain-still-works", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the pending collective; raises what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _beat(self) -> None:
        end = time.monotonic() + self._limit
        try:
            while not self.stopping.wait(_BEAT_SECONDS):
                if time.monotonic() > end:
                    self._end()
                _somebody_works(self._comm, self._name, True)
        except Exception as error:  # handed to the main thread, whatever it is
            self._error = error

    def _end(self) -> None:
        error = HvdtrainError(
            f"{self._name.removesuffix('.done')} has not ended within {self._limit:g} s.",
            "All other ranks wait for it.",
            "look at its stack above, and at the disk or network that it uses.",
        )
        end_process(self._comm.topology.rank, "error", error, with_stacks=True)
