"""Collectives that fail because of another rank: one exception for all of Horovod's ways to report that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from hvdtrain.comm.deadlines import CurrentWait, StallDeadline
from hvdtrain.errors import PeerError

# TensorFlow wraps Horovod's status into errors of its own classes, which cannot be imported here without
# importing TensorFlow; torch raises HorovodInternalError. Both contain Horovod's texts.
_SIGNS = (
    "Horovod has been shut down",
    "HorovodAllreduce",
    "HorovodAllgather",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodGrouped",
    "Connection closed by peer",
    "Connection reset by peer",
)


_deadline: list[StallDeadline] = []  # of this process, which has one Horovod


def limit_waits(rank: int, stall_timeout: float) -> None:
    """From now on, end this process if one of `waits_for_peers` exceeds the limit of `StallDeadline`."""
    if not _deadline:
        _deadline.append(StallDeadline(rank, stall_timeout))


@contextmanager
def waits_for_peers(current: CurrentWait = lambda: True) -> Iterator[None]:
    """Run collectives, as in `peer_failures`, and for a limited time.

    Args:
        current: which wait the block is in, if it also computes: there is no limit for this rank's own work.
    """
    with peer_failures(), _deadline[0].waiting(current) if _deadline else nullcontext():
        yield


@contextmanager
def peer_failures() -> Iterator[None]:
    """Run a block with collectives; raise `PeerError` if one failed because of another rank."""
    try:
        yield
    except Exception as error:
        if not is_peer_failure(error):
            raise
        raise PeerError(
            "A collective operation was aborted.",
            f"Another rank has ended or stalled: {_telling_sentence(error)}.",
            "read that rank's own message (it comes first) or its file under logs/.",
        ) from error


def is_peer_failure(error: BaseException) -> bool:
    """Whether an exception of torch, TensorFlow or Horovod says that the ring is broken."""
    return type(error).__name__ == "HorovodInternalError" or any(sign in str(error) for sign in _SIGNS)


def _telling_sentence(error: BaseException) -> str:
    """Horovod's own words; TensorFlow puts lines of its own before them."""
    line = next((line for line in str(error).splitlines() if any(sign in line for sign in _SIGNS)), "")
    plain = re.sub(r"\{\{.*?\}\}", "", line)  # TensorFlow's names of graph nodes
    return plain.strip().partition(". ")[0][:200].rstrip(".:") or type(error).__name__
