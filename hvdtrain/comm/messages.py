"""JSON over collectives, agreement of all ranks on the errors of each, and work of one rank for which others wait."""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import numpy as np

from data_sharding.background import in_background
from data_sharding.errors import ShardingError
from hvdtrain import activity
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.peer_failure import end_process
from hvdtrain.errors import HvdtrainError, PeerError, UsageError

T = TypeVar("T")

START_SECONDS: Final = 7200.0
"""Limit on what a rank does alone at the start. Longer than a catalog is waited for, whose message says more."""

SAVE_SECONDS: Final = 1800.0  # limit on writing a checkpoint, or the ledger of records before it

RANK_BITS: Final = 30  # of a number of `ranks_where`, which stays above zero
_NAMED_RANKS: Final = 16  # in a message

_BEAT_SECONDS: Final = 0.5  # the shortest --stall-timeout is 2 s


def gather_bytes(comm: Communicator, value: bytes, name: str) -> list[bytes]:
    """Every rank's bytes, of any length each, in the order of ranks."""
    lengths = comm.allgather(np.array([len(value)], np.int64), f"{name}.lengths").tolist()
    joined = comm.allgather(np.frombuffer(value, np.uint8), f"{name}.data").tobytes()
    ends = np.cumsum(lengths).tolist()
    return [joined[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def gather_json(comm: Communicator, value: Any, name: str) -> list[Any]:
    """Every rank's value (anything that JSON can hold), in the order of ranks."""
    return [json.loads(text) for text in gather_bytes(comm, json.dumps(value).encode(), name)]


def ranks_where(comm: Communicator, condition: bool, name: str) -> list[int]:
    """The ranks on which the condition holds, ascending. Collective.

    Each rank adds a bit of its own to a sum: a few hundred bytes for thousands of ranks.
    """
    topology = comm.topology
    bits = np.zeros(-(-topology.size // RANK_BITS), np.int32)
    bits[topology.rank // RANK_BITS] = condition << topology.rank % RANK_BITS
    summed = comm.allreduce(bits, name).tolist()
    return [rank for rank in range(topology.size) if summed[rank // RANK_BITS] >> rank % RANK_BITS & 1]


def is_same_on_all(comm: Communicator, value: Any, name: str) -> bool:
    """Whether every rank's value (anything that JSON can hold) is the same, unless BLAKE2b collides. Collective.

    The largest and the least number of each part of the digests are compared, which costs the same for any number of
    ranks: who differs is asked for only where this says no.
    """
    digest = hashlib.blake2b(json.dumps(value).encode(), digest_size=32).digest()
    parts = np.frombuffer(digest, "<u4").astype(np.int64)
    largest = comm.allreduce(np.concatenate([parts, -parts]), f"{name}.same", "max")
    return bool(np.array_equal(largest[: len(parts)], -largest[len(parts) :]))


def broadcast_json(comm: Communicator, value: Any, name: str, root: int = 0) -> Any:
    """The value of rank `root` on every rank; the other ranks' argument is ignored."""
    is_root = comm.topology.rank == root
    encoded = np.frombuffer(json.dumps(value).encode(), np.uint8) if is_root else np.empty(0, np.uint8)
    length = int(comm.broadcast(np.array([encoded.size], np.int64), f"{name}.length", root)[0])
    buffer = encoded if is_root else np.zeros(length, np.uint8)
    return json.loads(comm.broadcast(buffer, f"{name}.data", root).tobytes())


def do_while_others_wait(comm: Communicator, work: Callable[[], T], name: str, limit: float) -> T:
    """Do `work`, which may take longer here than on other ranks, and return once every rank is done. Collective.

    Ranks that are done wait in short collectives, one after the other, in which those that still work take part by a
    thread. So --stall-timeout holds for ranks that are frozen or gone, and `work` has a limit of its own.

    Args:
        work: runs no collectives.
        limit: seconds after which a rank that still works ends, and with it the job.

    Raises PeerError: another rank has ended; `work` is done all the same.
    """
    if not comm.topology.is_distributed:
        return work()
    with _not_taken_for_progress():
        stopping = threading.Event()
        heartbeats = in_background(lambda: _tell_others(comm, f"{name}.done", limit, stopping))
        try:
            result = work()
        finally:
            stopping.set()
        heartbeats.result()
    activity.now.begin_wait(lambda: True, name)
    try:
        with _not_taken_for_progress():
            while _somebody_works(comm, f"{name}.done", False):
                pass
    finally:
        activity.now.end_wait()
    return result


@contextmanager
def _not_taken_for_progress() -> Iterator[None]:
    """Tell the watchdog that the short collectives are not progress: they end even while a rank hangs in its work."""
    activity.now.beats = True
    try:
        yield
    finally:
        activity.now.beats = False


def _somebody_works(comm: Communicator, name: str, self_too: bool) -> bool:
    return bool(comm.allreduce(np.array([self_too], np.int32), name, "max")[0])


def _tell_others(comm: Communicator, name: str, limit: float, stopping: threading.Event) -> None:
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


def agree(comm: Communicator, work: Callable[[], T], name: str) -> T:
    """Do `work` on this rank; every rank raises if any rank's work was refused.

    Without this a rank that finds, say, its data missing would leave the others waiting in their next collective.
    A refusal is an error of ours, with `fact`, `conflict` and `hint`. Anything else is a defect and ends this rank at
    once. The work may take longer on some ranks than collectives may.
    """
    result, refusal = do_while_others_wait(comm, lambda: _attempt(work), name, START_SECONDS)
    # A count first, which costs the same for any number of ranks; a text only where something is wrong.
    if comm.allreduce(np.array([refusal is not None], np.int64), f"{name}.refused")[0]:
        ranks = ranks_where(comm, refusal is not None, f"{name}.who")
        raise _joint_error(ranks, comm.topology.size, broadcast_json(comm, refusal, name, ranks[0]))
    return result  # type: ignore[return-value]


def _attempt(work: Callable[[], T]) -> tuple[T | None, list[Any] | None]:
    try:
        return work(), None
    except PeerError:
        raise
    except (HvdtrainError, ShardingError) as error:
        return None, [error.fact, error.conflict, error.hint, getattr(error, "exit_code", UsageError.exit_code)]


def _joint_error(ranks: list[int], size: int, refusal: list[Any]) -> HvdtrainError:
    fact, conflict, hint, exit_code = refusal  # of the first of these ranks
    if len(ranks) < size:
        named = ", ".join(map(str, ranks[:_NAMED_RANKS])) + (", …" if len(ranks) > _NAMED_RANKS else "")
        fact = f"On rank {named}: {fact}" if len(ranks) == 1 else f"On ranks {named} (the first one's words): {fact}"
    kind = UsageError if exit_code == UsageError.exit_code else HvdtrainError
    return kind(fact, conflict, hint).on_all_ranks()
