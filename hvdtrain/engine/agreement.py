"""What all ranks agree on: to stop after the same step, and to hold the same state.

A request to stop reaches one rank or all, at different moments. Each rank puts what it knows into an allreduce that is
started after some step and read some steps later, where it has long ended; so no rank waits, and all stop after the
same step. How many steps lie between follows from the reduced time of a step, hence is the same on all ranks.

The state is seen as named arrays only, so this serves every framework.
"""

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hvdtrain.adapters.interface import Adapter
from hvdtrain.comm.interface import Communicator
from hvdtrain.comm.messages import broadcast_json, gather_json
from hvdtrain.errors import DivergenceError
from hvdtrain.state import State

StopRequest = Callable[[], str | None]
"""Why this rank should stop, in a word or two; None while it should not."""

VOTE_SECONDS: Final = 0.4
"""Between two votes. Training stops at most two intervals and a step after a request."""

LONGEST_INTERVAL: Final = 32
"""Steps between two votes at most: bounds the delay where steps suddenly take much longer than before."""

_NAMED_RANKS: Final = 4


_PIECE_BYTES = 64 * 2**20  # bounds the copies that a broadcast makes


def never_asked() -> str | None:
    """For loops that nobody stops."""
    return None


@dataclass(eq=False)
class StopVote:
    """Whether to stop: the same answer on all ranks after the same step.

    Args:
        comm: the other ranks.
        asked: whether this rank should stop.
    """

    comm: Communicator
    asked: StopRequest

    def __post_init__(self) -> None:
        self._pending: Callable[[], NDArray[Any]] | None = None
        self._interval = 1
        self._steps = 0
        self._posted_at = time.perf_counter()
        self.decided = False
        """Whether all ranks have agreed to stop. Stays True."""

    def open(self) -> bool:
        """Vote now and wait for it: requests may have come while ranks started. Collective."""
        self._post()
        self._read()
        if not self.decided:
            self._post()
        return self.decided

    def after_step(self) -> bool:
        """To be called after each step, of training or validation; returns `decided`. Collective."""
        if self.decided:
            return True
        self._steps += 1
        if not self.comm.topology.is_distributed:
            self.decided = self.asked() is not None
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
        asked = gather_json(self.comm, self.asked(), "hvdtrain.stop.reasons")
        reasons = dict.fromkeys(answer for answer in asked if answer is not None)
        if not self.comm.topology.is_distributed:
            return ", ".join(reasons)
        return ", ".join(f"{reason} ({_ranks(reason, asked)})" for reason in reasons)

    def _post(self) -> None:
        now = time.perf_counter()
        step_seconds = (now - self._posted_at) / max(1, self._steps)
        self._posted_at, self._steps = now, 0
        own = np.array([self.asked() is not None, step_seconds], np.float64)
        self._pending = self.comm.start_allreduce(own, "hvdtrain.stop.vote", "max")

    def _read(self) -> None:
        if self._pending is None:
            raise RuntimeError("open() comes before the first step")
        stop, step_seconds = self._pending().tolist()
        self._pending = None
        self.decided = bool(stop)
        self._interval = next_interval(self._interval, step_seconds)


def next_interval(interval: int, step_seconds: float) -> int:
    """Steps until the next vote: VOTE_SECONDS' worth. It grows slowly: the first steps may not have been waited for."""
    fitting = int(VOTE_SECONDS / step_seconds) if step_seconds > 0 else LONGEST_INTERVAL
    return max(1, min(fitting, 2 * interval, LONGEST_INTERVAL))


def _ranks(reason: str, asked: list[str | None]) -> str:
    ranks = [rank for rank, answer in enumerate(asked) if answer == reason]
    if len(ranks) == len(asked):
        return "all ranks"
    named = ", ".join(map(str, ranks[:_NAMED_RANKS])) + (", …" if len(ranks) > _NAMED_RANKS else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {named}"


def broadcast_state(comm: Communicator, state: State | None) -> State:
    """Rank 0's named arrays on every rank, whatever the others hold (they may hold nothing).

    Names, dtypes and shapes go first, so ranks whose optimizer has no slots yet need not invent them. The values go as
    bytes: Horovod has no collective for some dtypes (bool, uint32), and a copy needs no arithmetic.
    """
    described, content = None, b""
    if comm.topology.is_root:
        if state is None:
            raise ValueError("rank 0 must give the state to broadcast")
        described = [[name, array.dtype.str, list(array.shape)] for name, array in state.items()]
        content = b"".join(array.tobytes() for array in state.values())
    layout = broadcast_json(comm, described, "hvdtrain.state.names")
    sizes = [np.dtype(dtype).itemsize * math.prod(shape) for _, dtype, shape in layout]
    raw = np.frombuffer(content, np.uint8) if comm.topology.is_root else np.empty(sum(sizes), np.uint8)
    starts = range(0, raw.size, _PIECE_BYTES)
    pieces = [comm.broadcast(raw[start : start + _PIECE_BYTES], "hvdtrain.state.values") for start in starts]
    received = np.concatenate(pieces) if pieces else raw
    ends = np.cumsum(sizes, dtype=np.int64).tolist()
    return {
        name: received[end - size : end].view(dtype).reshape(shape)
        for (name, dtype, shape), size, end in zip(layout, sizes, ends, strict=True)
    }


def average_rank_local_state(comm: Communicator, adapter: Adapter) -> None:
    """Replace buffers that each rank made from its own samples by their mean over ranks, computed in float64."""
    buffers = adapter.rank_local_state() if comm.topology.is_distributed else {}
    if not buffers:
        return
    own = np.concatenate([array.astype(np.float64).reshape(-1) for array in buffers.values()])
    mean = comm.allreduce(own, "hvdtrain.buffers") / comm.topology.size
    ends = np.cumsum([array.size for array in buffers.values()]).tolist()
    averaged = {
        name: mean[end - array.size : end].reshape(array.shape).astype(array.dtype)
        for (name, array), end in zip(buffers.items(), ends, strict=True)
    }
    adapter.load_rank_local_state(averaged)


def weights_hash(state: State) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of all weights and buffers."""
    digest = hashlib.sha256()
    for name in sorted(n for n in state if n.startswith("model/")):
        array = state[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def assert_equal_weights(comm: Communicator, state: State, when: str) -> str:
    """The hash that all ranks' weights have in common.

    Raises:
        DivergenceError: on every rank, naming the ranks that differ from rank 0.
    """
    hashes = gather_json(comm, weights_hash(state), "hvdtrain.weights.hash")
    different = [rank for rank, value in enumerate(hashes) if value != hashes[0]]
    if different:
        raise DivergenceError(
            f"{when} the weights of rank {', '.join(map(str, different))} differ from rank 0's.",
            "The ranks no longer train one model.",
            "look for code in the task that changes weights or draws random numbers differently on some ranks.",
        ).on_all_ranks()
    return str(hashes[0])
