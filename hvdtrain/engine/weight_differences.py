"""What differs between the weights of ranks that must have the same ones, for people who look for the cause."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import broadcast_json, gather_json
from hvdtrain.errors import DivergenceError
from hvdtrain.named_arrays import (
    State,
    array_checksum,
    as_numbers,
    bytes_of,
    dtype_of,
    dtype_text,
    name_of_bits,
    weights_digest,
    weights_of,
)

_NAMED: Final = 3  # arrays in a message
_PIECE_BYTES: Final = 4 * 2**20  # bounds what is copied; a multiple of every dtype's size

_Described = tuple[str, str, list[int], int]  # name, dtype, shape and checksum of an array


def ranks_unlike_first(by_rank: Sequence[Sequence[Any]]) -> list[int]:
    """The ranks whose value is not the first one of their stage. `by_rank` has stage and value of each."""
    first = {stage: value for stage, value in reversed(by_rank)}
    return [rank for rank, (stage, value) in enumerate(by_rank) if value != first[stage]]


def divergence(comm: Communicator, state: State, stage: int, when: str, known: int | None) -> DivergenceError:
    """The error of ranks whose weights differ, the same one on all ranks, to be raised by all. Collective.

    It names the ranks, the first arrays that differ, in how many numbers, and by how much. `when`: they differed,
    perhaps some steps ago: local SGD makes them equal again; `known`: the last step after which they were known to be
    equal.
    """
    by_rank: list[list[Any]] = gather_json(comm, [stage, weights_digest(state)], "hvdtrain.weights.digests")
    ranks = ranks_unlike_first(by_rank)
    stages = [of for of, _ in by_rank]
    compared = "rank 0's" if len(set(stages)) == 1 else "those of the first rank with the same stage"
    differing = sorted({stages[rank] for rank in ranks})
    whats = [_what_differs(comm, weights_of(state), stages.index(of), stage == of) for of in differing]
    since = [] if known is None else [f"They were equal after step {known}."]
    named = f"the weights of rank {', '.join(map(str, ranks))} differ from {compared}"
    return DivergenceError(
        f"{when} {named if ranks else 'ranks had different weights, which have become equal since'}.",
        " ".join([*since, *whats, f"The ranks {'no longer' if ranks else 'did not'} train one model."]),
        "look for code in the task that changes weights or draws random numbers differently on some ranks; "
        "--check-weights-every 1 finds the step. --resume auto continues from the last checkpoint, of equal weights.",
    ).on_all_ranks()


def _what_differs(comm: Communicator, weights: State, root: int, compares: bool) -> str:
    """Which arrays of rank `root` the ranks that compare theirs do not have alike. Collective."""
    described = [
        (name, dtype_text(array.dtype), list(array.shape), array_checksum(name, array))
        for name, array in weights.items()
    ]
    arrays: list[_Described] = broadcast_json(comm, described, "hvdtrain.weights.arrays", root)
    here = [
        compares and (name not in weights or array_checksum(name, weights[name]) != checksum)
        for name, _, _, checksum in arrays
    ]
    anywhere = comm.allreduce(np.array([*here, False], np.int32), "hvdtrain.weights.differing", "max")
    places = np.flatnonzero(anywhere).tolist()
    descriptions = [_one_array(comm, weights, root, arrays[place], compares) for place in places[:_NAMED]]
    more = "; …" if len(places) > _NAMED else ""
    if not places:
        return "Some ranks have more arrays than others."
    return f"{len(places)} of {len(arrays)} arrays differ: {'; '.join(descriptions)}{more}."


def _one_array(comm: Communicator, weights: State, root: int, described: _Described, compares: bool) -> str:
    """In how many numbers of an array a rank differs from rank `root`, and by how much: the most of all ranks.
    Collective."""
    name, dtype, shape, _ = described
    local = weights.get(name)
    if local is not None and (dtype_text(local.dtype), list(local.shape)) != (dtype, shape):
        local = None
    count, largest = 0, 0.0
    size = int(np.prod(shape)) * dtype_of(dtype).itemsize
    sent = bytes_of(weights[name]) if comm.topology.rank == root else np.zeros(size, np.uint8)
    for start in range(0, size, _PIECE_BYTES):
        piece = comm.broadcast(sent[start : start + _PIECE_BYTES], "hvdtrain.weights.values", root)
        if compares and local is not None:
            differing, by = _difference(bytes_of(local)[start : start + _PIECE_BYTES], piece, dtype_of(dtype))
            count, largest = count + differing, float(np.maximum(largest, by))
    row = np.array([[count, largest, compares and local is None]], np.float64)
    rows = comm.allgather(row, "hvdtrain.weights.difference")
    label = repr(name.removeprefix("model/"))
    if rows[:, 2].any():
        return f"{label} has another shape or type, or is missing"
    count, largest = int(rows[:, 0].max()), float(rows[:, 1].max())
    return f"{label} in {count:,} of {int(np.prod(shape)):,} numbers, by {largest:.3g} at most"


def _difference(local: NDArray[np.uint8], other: NDArray[np.uint8], dtype: np.dtype[Any]) -> tuple[int, float]:
    """How many numbers differ in their bytes, and by how much at most. NaN where one of them is not a number, or of a
    type with which numpy cannot compute, such as text or float8."""
    unlike = (local.reshape(-1, dtype.itemsize) != other.reshape(-1, dtype.itemsize)).any(axis=1)
    if not unlike.any():
        return 0, 0.0
    if dtype.kind == "S" or name_of_bits(dtype) not in (None, "bfloat16"):
        return int(unlike.sum()), np.nan
    exact = np.complex128 if dtype.kind == "c" else np.float64
    pair = [as_numbers(values.copy().view(dtype)[unlike]).astype(exact) for values in (local, other)]
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        return int(unlike.sum()), float(np.abs(pair[0] - pair[1]).max())
