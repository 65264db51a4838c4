"""Arrays of which each rank has a slice, joined: the state of a sharded optimizer, before it is saved."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import gather_json
from hvdtrain.named_arrays import State, dtype_of, dtype_text

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
        message_bytes: the most in one message, of all ranks together; bounds what ranks copy that keep nothing.
    """
    told: dict[str, _Slice] = {
        name: (array.nbytes, dtype_text(array.dtype), array.tobytes().hex() if array.ndim == 0 else None)
        for name, array in own.items()
    }
    all_told: list[dict[str, _Slice]] = gather_json(comm, told, "hvdtrain.slices")
    first: dict[str, _Slice] = {}
    for one in reversed(all_told):
        first |= one
    joined: State = {
        name: np.frombuffer(bytes.fromhex(number), dtype_of(dtype))[0]
        for name, (_, dtype, number) in first.items()
        if number
    }
    for names in _groups(first, all_told, message_bytes):
        lengths = [[one[name][0] if name in one else 0 for name in names] for one in all_told]
        parts = _joined(comm, _bytes_of(own, names), np.array(lengths), keeps, message_bytes)
        joined |= {name: part.view(dtype_of(first[name][1])) for name, part in zip(names, parts, strict=False)}
    return joined if keeps else {}


def _joined(
    comm: Communicator, own: NDArray[np.uint8], lengths: NDArray[np.int64], keeps: bool, most: int
) -> list[NDArray[np.uint8]]:
    """Each array's bytes, on ranks that keep them; [] on others.

    Args:
        own: this rank's bytes of all of the arrays.
        lengths: of each rank's slices, [ranks, arrays].
        most: bytes of a message, of all ranks together.
    """
    of_rank = lengths.sum(1)
    received = [np.empty(length, np.uint8) for length in of_rank] if keeps else []
    piece = max(1, most // len(lengths))
    for begin in range(0, int(of_rank.max(initial=0)), piece):
        values = comm.allgather(own[begin : begin + piece], "hvdtrain.slices.values")
        ends = np.cumsum(np.clip(of_rank - begin, 0, piece))
        for rank, part in enumerate(np.split(values, ends[:-1]) if keeps else ()):
            received[rank][begin : begin + part.size] = part
    ends_in_rank = np.cumsum(lengths, 1)
    return [
        np.concatenate([one[end - length : end] for one, end, length in zip(received, *columns, strict=True)])
        for columns in zip(ends_in_rank.T, lengths.T, strict=True)
        if keeps
    ]


def _groups(first: Mapping[str, _Slice], all_told: list[dict[str, _Slice]], most: int) -> Iterator[list[str]]:
    """Names of arrays that travel together; a large one is alone, and travels in several messages."""
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
