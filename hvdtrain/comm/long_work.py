"""Work for which other ranks wait longer than a collective may take: indexing data, writing a checkpoint."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

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
    stopping = threading.Event()
    beats = in_background(lambda: _beat(comm, f"{name}.done", limit, stopping))
    try:
        result = work()
    finally:
        stopping.set()
    beats()
    while _somebody_works(comm, f"{name}.done", False):
        pass
    return result


def _somebody_works(comm: Communicator, name: str, self_too: bool) -> bool:
    return bool(comm.allreduce(np.array([self_too], np.int32), name, "max")[0])


def _beat(comm: Communicator, name: str, limit: float, stopping: threading.Event) -> None:
    """Tell the other ranks at intervals that this one still works."""
    end = time.monotonic() + limit
    while not stopping.wait(_BEAT_SECONDS):
        if time.monotonic() > end:
            error = HvdtrainError(
                f"{name.removesuffix('.done')} has not ended within {limit:g} s.",
                "All other ranks wait for it.",
                "look at its stack above, and at the disk or network that it uses.",
            )
            end_process(comm.topology.rank, "error", error, with_stacks=True)
        _somebody_works(comm, name, True)


def in_background(work: Callable[[], T]) -> Callable[[], T]:
    """Start `work` in a thread; the function returned waits for it, and returns or raises what it did.

    The thread is a daemon: a collective that never ends must not keep a process whose main thread has ended.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # handed to the caller, whatever it is
            future.set_exception(error)

    threading.Thread(target=run, name="hvdtrain-background", daemon=True).start()
    return future.result
