"""Short sequences of tokens behind each other in rows of one length, so that little is padding."""

import bisect
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from data_sharding.checks import at_least
from data_sharding.errors import BadRecord, PlanError
from data_sharding.formats.record_format import Damaged
from data_sharding.objects.arrays import as_array
from data_sharding.objects.collate import Names, parts_of
from data_sharding.objects.items import source_of
from data_sharding.objects.object_columns import numbers_of
from data_sharding.objects.padding import rows_filled


class PackedSequences(Sequence[dict[str, NDArray[Any]]]):
    """A map-style Dataset of rows, each of which holds whole sequences of another one.

    Which sequences share a row depends on the lengths only: the longest one is placed first, each into the fullest row
    that has room for it (best fit decreasing; Johnson, 1973). So each sequence is in one row, and a plan that uses each
    row once an epoch uses each sequence once. Item i is

        part       [size], the dtype of the sequences; `pad` behind the last one
        segments   int32[size], 1 for the first sequence of the row, 2 for the second …, 0 behind the last one
        positions  int32[size], places within the sequence, from 0

    so that attention can be kept inside of `segments`, and losses to where they are not 0.

    Args:
        sequences: a map-style Dataset, a table, or a list of arrays or lists of numbers.
        size: length of a row.
        part: of an item, which is the sequence.
        lengths: int64[N] of all sequences, or the name of the attribute or column that has them; None: every one is
            read once.
        pad: what a row is filled up with.
        names: of the parts of items that are tuples.

    Attributes:
        members: for each row, the numbers of its sequences, int64.

    Raises:
        PlanError: a sequence is longer than a row or empty, or items have no such part.
    """

    def __init__(
        self,
        sequences: Any,
        size: int,
        *,
        part: str = "tokens",
        lengths: ArrayLike | str | None = None,
        pad: float = 0,
        names: Names = None,
    ) -> None:
        self._source, self._size, self._part, self._pad = source_of(sequences), size, part, pad
        self._names: Names = names if names is not None else part
        at_least(1, "size", size, "A row holds at least one token.")
        count = len(self._source)
        known = numbers_of(sequences, "lengths", lengths, count)
        if known is None:
            known = np.array([self._length(number) for number in range(count)], np.int64)
        _require_that_they_fit(known, size)
        self.members = packed(known, size)

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, index: Any) -> Any:
        """Row `index`."""
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        parts = [self._sequence(int(number)) for number in self.members[index]]
        lengths = [len(part) for part in parts]
        segments, positions = np.zeros(self._size, np.int32), np.zeros(self._size, np.int32)
        end = sum(lengths)
        if end > self._size:
            raise PlanError(
                f"The sequences of row {index} have {end:,} tokens together, and a row has {self._size:,}.",
                "They are longer than `lengths` said.",
                "give the right lengths, or none.",
            )
        (row,) = rows_filled(parts, [np.concatenate(parts)], self._size, self._pad, self._part)
        segments[:end] = np.repeat(np.arange(1, len(parts) + 1), lengths)
        positions[:end] = np.concatenate([np.arange(length) for length in lengths])
        return {self._part: row, "segments": segments, "positions": positions}

    def _length(self, number: int) -> int:
        """One that cannot be made gets a row of its own: no other one is lost with it."""
        try:
            return len(self._sequence(number))
        except BadRecord:
            return self._size

    def _sequence(self, number: int) -> NDArray[Any]:
        (item,) = self._source.items(np.array([number]))
        if isinstance(item, Damaged):
            raise BadRecord(item.reason)
        if isinstance(item, list) and all(isinstance(token, int | float) for token in item):
            return as_array(item)
        (parts,) = parts_of([item], self._names)
        if self._part not in parts:
            raise PlanError(
                f"An item has {', '.join(map(repr, parts))}, and no {self._part!r}.",
                "That part is the sequence that is packed.",
                "name it: PackedSequences(…, part=NAME).",
            )
        sequence = as_array(parts[self._part])
        if sequence.ndim == 0 or sequence.dtype.kind not in "biufc":
            raise PlanError(
                f"{self._part!r} of item {number} is {sequence.dtype} of shape {list(sequence.shape)}.",
                "A sequence is an array of numbers.",
                "let each item be, or have, an array or a list of numbers.",
            )
        return sequence


def packed(lengths: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Rows of `size` places, each as numbers of the sequences in it, in the order in which they were begun."""
    rows: list[list[int]] = []
    with_room: dict[int, list[int]] = {}  # numbers of rows by the room that is left in them
    rooms: list[int] = []  # those keys, ascending
    for number in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[number])
        place = bisect.bisect_left(rooms, length)
        if place < len(rooms):
            room = rooms[place]
            row = with_room[room].pop()
            if not with_room[room]:
                del with_room[room], rooms[place]
        else:
            room, row = size, len(rows)
            rows.append([])
        rows[row].append(number)
        left = room - length
        if left not in with_room:
            with_room[left] = []
            bisect.insort(rooms, left)
        with_room[left].append(row)
    return [np.array(row, np.int64) for row in rows]


def _require_that_they_fit(lengths: NDArray[np.int64], size: int) -> None:
    wrong = np.flatnonzero((lengths < 1) | (lengths > size))
    if len(wrong):
        raise PlanError(
            f"Sequence {wrong[0]} has {int(lengths[wrong[0]]):,} tokens, as {len(wrong):,} have that do not fit.",
            f"A row holds whole sequences of 1 to {size:,} tokens.",
            "cut them in the object, leave them out, or make rows longer.",
        )
