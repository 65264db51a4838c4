"""Turn Horovod's ways of saying "another rank is gone" into one exception."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from hvdtrain.comm.stall_deadline import StallDeadline, Standing
from hvdtrain.errors import PeerError

# TensorFlow wraps Horovod's status into errors of its own classes, which cannot be imported here without
# importing TensorFlow; torch raises HorovodInternalError. Both carry Horovod's texts.
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
    """From now on, end this process where one of `waits_for_peers` outlasts what `StallDeadline` grants."""
    if not _deadline:
        _deadline.append(StallDeadline(rank, stall_timeout))


@contextmanager
def waits_for_peers(standing: Standing = lambda: True) -> Iterator[None]:
    """Run collectives, as in `peer_failures`, and for a limited time.

    Args:
        standing: when the block waits, if it also computes: no limit holds for what this rank itself does.
    """
    with peer_failures(), _deadline[0].waiting(standing) if _deadline else nullcontext():
        yield


@contextmanager
def peer_failures() -> Iterator[None]:
    """Run what has collectives in it; raise `PeerError` where one failed because of another rank."""
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
