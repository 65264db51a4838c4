"""State of which each rank has a part: gathered before it is saved, and divided when it is loaded.

So a checkpoint is that of a run without shards or stages, for any number of workers.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from hvdtrain.adapters.sync_state import in_buckets
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import gather_json
from hvdtrain.named_arrays import NO_STATE, State, bytes_of, dtype_of, dtype_text
from hvdtrain.topology.topology import Grid

MESSAGE_BYTES: Final = 16 * 2**20
_Slice = tuple[int, str, str | None]
"""Bytes, dtype, and of a number its bytes in hexadecimal digits."""


def join_slices(
    comm: Communicator, local: Mapping[str, NDArray[Any]], keeps: bool, message_bytes: int = MESSAGE_BYTES
) -> State:
    """The whole arrays, on ranks that keep them. Collective.

    Args:
        local: this rank's slices [n], which follow each other in the order of ranks; or numbers [], which are equal on
            all ranks that have them. A rank that has nothing of an array leaves it out.
        keeps: whether this rank needs them; else the result is empty.
        message_bytes: the most in one message, of all ranks together; bounds what ranks copy that keep nothing.
    """
    described: dict[str, _Slice] = {
        name: (array.nbytes, dtype_text(array.dtype), array.tobytes().hex() if array.ndim == 0 else None)
        for name, array in local.items()
    }
    by_rank: list[dict[str, _Slice]] = gather_json(comm, described, "hvdtrain.slices")
    first: dict[str, _Slice] = {}
    for of_rank in reversed(by_rank):
        first |= of_rank
    joined: State = {
        name: np.frombuffer(bytes.fromhex(number), dtype_of(dtype))[0]
        for name, (_, dtype, number) in first.items()
        if number
    }

    def nbytes(name: str) -> int:
        return sum(of_rank[name][0] for of_rank in by_rank if name in of_rank)

    # Arrays that travel together; a large one is alone, and travels in several messages.
    slices = [name for name, (_, _, number) in first.items() if number is None]
    for names in in_buckets(slices, lambda _: None, nbytes, message_bytes):
        lengths = [[of_rank[name][0] if name in of_rank else 0 for name in names] for of_rank in by_rank]
        sent = [np.empty(0, np.uint8), *(bytes_of(local[name]) for name in names if name in local)]
        parts = _joined(comm, np.concatenate(sent), np.array(lengths), keeps, message_bytes)
        joined |= {name: part.view(dtype_of(first[name][1])) for name, part in zip(names, parts, strict=False)}
    return joined if keeps else {}


def join_in_shapes(
    comm: Communicator, local: State, shapes: Mapping[str, Sequence[int]], keeps: bool, name: str
) -> State:
    """As `join_slices`, in the shapes that ranks know: each of some arrays, the same where several do. Collective."""
    all_shapes: dict[str, Sequence[int]] = {}
    for of_rank in gather_json(comm, dict(shapes), name):
        all_shapes |= of_rank
    joined = join_slices(comm, local, keeps)
    return {name: np.asarray(array).reshape(all_shapes.get(name, ())) for name, array in joined.items()}


def _joined(
    comm: Communicator, local: NDArray[np.uint8], lengths: NDArray[np.int64], keeps: bool, most: int
) -> list[NDArray[np.uint8]]:
    """Each array's bytes, on ranks that keep them; [] on others.

    Args:
        local: this rank's bytes of all of the arrays.
        lengths: of each rank's slices, [ranks, arrays].
        most: bytes of a message, of all ranks together.
    """
    of_rank = lengths.sum(1)
    received = [np.empty(length, np.uint8) for length in of_rank] if keeps else []
    piece = max(1, most // len(lengths))
    for begin in range(0, int(of_rank.max(initial=0)), piece):
        values = comm.allgather(local[begin : begin + piece], "hvdtrain.slices.values")
        ends = np.cumsum(np.clip(of_rank - begin, 0, piece))
        for rank, part in enumerate(np.split(values, ends[:-1]) if keeps else ()):
            received[rank][begin : begin + part.size] = part
    ends_in_rank = np.cumsum(lengths, 1)
    return [
        np.concatenate([whole[end - length : end] for whole, end, length in zip(received, *columns, strict=True)])
        for columns in zip(ends_in_rank.T, lengths.T, strict=True)
        if keeps
    ]


class Arrays(Protocol):
    """A framework's functions (the module `state`) that make named arrays of a model and its optimizer, and back."""

    def read_state(self, model: Any, optimizer: Any, earlier: Mapping[str, NDArray[Any]]) -> State: ...

    def view_state(self, model: Any, optimizer: Any) -> State: ...

    def view_weights(self, model: Any, optimizer: Any) -> State: ...

    def load_state(self, model: Any, optimizer: Any, state: State) -> None: ...

    def drifting_buffers(self, model: Any) -> State: ...

    def load_rank_local_state(self, model: Any, buffers: State) -> None: ...


class ShardedState(ABC):
    """The state of a sharded optimizer, and of a model without one. Implements `Arrays`.

    Args: `sync`: the framework's gradient sync, which knows the parts.
    """

    _whole: Arrays  # the framework's functions, which are given an optimizer that keeps nothing of whole weights

    def __init__(self, sync: Any) -> None:
        self._sync = sync
        self._gathered: State = {}
        self.drifting_buffers = self._whole.drifting_buffers
        self.load_rank_local_state = self._whole.load_rank_local_state

    def gather(self, comm: Communicator, model: Any, optimizer: Any, keeps: bool) -> None:
        self._gathered = self._joined(comm, model, optimizer, keeps)

    def read_state(self, model: Any, optimizer: Any, earlier: Mapping[str, NDArray[Any]] = NO_STATE) -> State:
        """After `gather`, whose arrays it gives away."""
        gathered, self._gathered = self._gathered, {}
        return self._whole.read_state(model, self._bare(optimizer), earlier) | gathered

    def view_state(self, model: Any, optimizer: Any) -> State:
        return self._whole.view_state(model, self._bare(optimizer))

    def view_weights(self, model: Any, optimizer: Any) -> State:
        return self._whole.view_weights(model, self._bare(optimizer))

    @abstractmethod
    def load_state(self, model: Any, optimizer: Any, state: State) -> None:
        """Load this rank's part of each array of the optimizer."""

    @abstractmethod
    def _joined(self, comm: Communicator, model: Any, optimizer: Any, keeps: bool) -> State:
        """The optimizer's arrays in the shapes of whole weights. Collective."""

    def _bare(self, optimizer: Any) -> Any:
        """An optimizer in which `whole` finds nothing."""
        return optimizer


class StageState:
    """What other ranks have of the model.

    Args:
        others: names of weights, buffers and extra states of other stages alone.
        drifting: zeros, float64 or complex128, in the shapes of all stages' arrays whose mean over ranks replaces them.
        grid: this rank among the others; the first replica gives the state.
    """

    def __init__(self, others: Collection[str], drifting: Mapping[str, NDArray[Any]], grid: Grid) -> None:
        self._others, self._drifting, self._grid = others, drifting, grid
        self._gathered: State | None = None
        self.stage, self.stages = grid.stage, grid.stages

    @property
    def counts(self) -> bool:
        """Whether this rank measures: the other stages are given the same records."""
        return self._grid.is_last

    def gather(self, comm: Communicator, local: State, keeps: bool) -> None:
        sent = local if self._grid.topology.rank < self._grid.stages else {}
        shapes = {name: array.shape for name, array in sent.items()}
        flat = {name: array if array.ndim == 0 else np.asarray(array).reshape(-1) for name, array in sent.items()}
        whole = join_in_shapes(comm, flat, shapes, keeps, "hvdtrain.stages.shapes")
        self._gathered = whole if keeps else None

    def take(self) -> State | None:
        """What was gathered, once; None where nothing was."""
        gathered, self._gathered = self._gathered, None
        return gathered

    def own_of(self, state: State) -> State:
        """Select this rank's arrays from those of a whole state."""
        return {key: array for key, array in state.items() if _weight_of(key) not in self._others}

    def spread(self, local: State) -> State:
        """Arrays whose mean over all ranks is the mean over those that have the stage, and those without a mean."""
        spread = {
            name: zeros if name not in local else self.stages * local[name].astype(zeros.dtype)
            for name, zeros in self._drifting.items()
        }
        return spread | {name: array for name, array in local.items() if name not in self._drifting}


def _weight_of(key: str) -> str:
    """ "fc.weight" of "model/fc.weight", "ema/fc.weight" and "optimizer/fc.weight/exp_avg"."""
    kind, _, name = key.partition("/")
    if kind == "optimizer":
        return name.rpartition("/")[0]
    return name if kind in ("model", "ema") else ""
