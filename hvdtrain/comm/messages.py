"""JSON over collectives, and the agreement of all ranks on what one of them found."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from hvdtrain.comm.interface import Communicator
from hvdtrain.comm.long_work import START_SECONDS, do_while_others_wait
from hvdtrain.errors import HvdtrainError, PeerError, UsageError

T = TypeVar("T")


def gather_bytes(comm: Communicator, value: bytes, name: str) -> list[bytes]:
    """Every rank's bytes, of any length each, in the order of ranks."""
    own = np.frombuffer(value, np.uint8)
    lengths = comm.allgather(np.array([own.size], np.int64), f"{name}.lengths").tolist()
    joined = comm.allgather(own, f"{name}.data").tobytes()
    ends = np.cumsum(lengths).tolist()
    return [joined[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def gather_json(comm: Communicator, value: Any, name: str) -> list[Any]:
    """Every rank's value (anything that JSON can hold), in the order of ranks."""
    return [json.loads(text) for text in gather_bytes(comm, json.dumps(value).encode(), name)]


def broadcast_json(comm: Communicator, value: Any, name: str) -> Any:
    """Rank 0's value on every rank; the other ranks' argument is ignored."""
    encoded = np.frombuffer(json.dumps(value).encode(), np.uint8) if comm.topology.is_root else np.empty(0, np.uint8)
    length = int(comm.broadcast(np.array([encoded.size], np.int64), f"{name}.length")[0])
    buffer = encoded if comm.topology.is_root else np.zeros(length, np.uint8)
    return json.loads(comm.broadcast(buffer, f"{name}.data").tobytes())


def agree(comm: Communicator, work: Callable[[], T], name: str, refusals: tuple[type[Exception], ...] = ()) -> T:
    """Do `work` on this rank; every rank raises if any rank's work was refused.

    Without this a rank that finds, say, its data missing would leave the others waiting in their next collective.
    `refusals` are further exception types that carry `fact`, `conflict` and `hint`. Anything else is a defect and
    ends this rank at once, with its traceback. The work may take longer on some ranks than collectives may.
    """
    kinds: tuple[type[Exception], ...] = (HvdtrainError, *refusals)
    result, refusal = do_while_others_wait(comm, lambda: _attempt(work, kinds), name, START_SECONDS)
    answers = gather_json(comm, refusal, name)
    refused = [(rank, answer) for rank, answer in enumerate(answers) if answer is not None]
    if refused:
        raise _joint_error(comm, refused)
    return result  # type: ignore[return-value]


def _attempt(work: Callable[[], T], refusals: tuple[type[Exception], ...]) -> tuple[T | None, list[Any] | None]:
    try:
        return work(), None
    except PeerError:
        raise
    except refusals as error:
        parts = [getattr(error, part) for part in ("fact", "conflict", "hint")]
        return None, [*parts, getattr(error, "exit_code", UsageError.exit_code)]


def _joint_error(comm: Communicator, refused: list[tuple[int, list[Any]]]) -> HvdtrainError:
    rank, (fact, conflict, hint, exit_code) = refused[0]
    if len(refused) < comm.topology.size:
        ranks = ", ".join(str(r) for r, _ in refused)
        fact = f"On rank {ranks}: {fact}" if len(refused) == 1 else f"On ranks {ranks} (the first one's words): {fact}"
    kind = UsageError if exit_code == UsageError.exit_code else HvdtrainError
    return kind(fact, conflict, hint).on_all_ranks()
