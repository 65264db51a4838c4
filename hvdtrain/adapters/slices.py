"""Arrays of which each rank has a slice, joined: the state of a sharded optimizer, before it is saved."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hvdtrain.comm.interface import Communicator
from hvdtrain.comm.messages import gather_json
from hvdtrain.state import State

MESSAGE_BYTES: Final = 16 * 2**20
_Slice = tuple[int, str, str | None]
"""Bytes, dtype, and of a number its bytes in hexadecimal digits."""


def join_slices(
    comm: Communicator, own: Mapping[str, NDArray[Any]], keeps: bool, message_bytes: int = MESSAGE_BYTES
) -> State:
    """The whole arrays, on ranks that keep them. Collective.

    Args:
        own: this rank's slices [n], which follow each other in the order of ranks; or numbers [], which are the same on
            all ranks that have them. A rank that has nothing of an array leaves it out.
        keeps: whether this rank needs them; else the result is empty.
        message_bytes: of several arrays in one message, of all ranks together; bounds what is copied.
    """
    told: dict[str, _Slice] = {
        name: (array.nbytes, array.dtype.str, array.tobytes().hex() if array.ndim == 0 else None)
        for name, array in own.items()
    }
    all_told: list[dict[str, _Slice]] = gather_json(comm, told, "hvdtrain.slices")
    first: dict[str, _Slice] = {}
    for one in reversed(all_told):
        first |= one
    joined: State = {
        name: np.frombuffer(bytes.fromhex(number), dtype)[0] for name, (_, dtype, number) in first.items() if number
    }
    for names in _groups(first, all_told, message_bytes):
        values = comm.allgather(_bytes_of(own, names), "hvdtrain.slices.values")
        if keeps:
            parts = _divided(values, [[one.get(name, (0,))[0] for name in names] for one in all_told])
            joined |= {name: part.view(first[name][1]) for name, part in zip(names, parts, strict=True)}
    return joined if keeps else {}


def _groups(first: Mapping[str, _Slice], all_told: list[dict[str, _Slice]], most: int) -> Iterator[list[str]]:
    """Names of arrays that travel in one message; a large one is alone."""
    group: list[str] = []
    size = 0
    for name, (_, _, number) in first.items():
        if number is not None:
            continue
        needed = sum(one[name][0] for one in all_told if name in one)
        if group and size + needed > most:
            yield group
            group, size = [], 0
        group.append(name)
        size += needed
    if group:
        yield group


def _bytes_of(own: Mapping[str, NDArray[Any]], names: list[str]) -> NDArray[np.uint8]:
    parts = [np.ascontiguousarray(own[name]).view(np.uint8) for name in names if name in own]
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)


def _divided(values: NDArray[np.uint8], lengths: list[list[int]]) -> list[NDArray[np.uint8]]:
    """Each array's bytes, out of all ranks' one after the other. Args: `lengths`: of each part, [ranks][arrays]."""
    ends = np.cumsum(np.array(lengths)).reshape(len(lengths), -1)
    starts = ends - np.array(lengths)
    return [
        np.concatenate([values[start:end] for start, end in zip(starts[:, column], ends[:, column], strict=True)])
        for column in range(ends.shape[1])
    ]
