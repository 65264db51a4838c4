"""Short sequences of tokens behind each other in rows of one length, so that little is padding."""

import bisect
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from data_sharding.checks import at_least
from data_sharding.errors import BadRecord, PlanError
from data_sharding.formats.record_format import Damaged
from data_sharding.objects.arrays import as_array
from data_sharding.objects.collate import Names, parts_of, require_same_parts, whole_part
from data_sharding.objects.items import source_of
from data_sharding.objects.object_columns import numbers_of
from data_sharding.objects.padding import Padding, rows_filled

_OWN: Final = ("segments", "positions")


class PackedSequences(Sequence[dict[str, NDArray[Any]]]):
    """A map-style Dataset of rows, each of which holds whole sequences of another one.

    Which sequences share a row depends on the lengths only: the longest one is placed first, each into the fullest row
    that has room for it (best fit decreasing; Johnson, 1973). So each sequence is in one row, and a plan that uses each
    row once an epoch uses each sequence once. Item i is

        part       [size], the dtype of the sequences; `pad` behind the last one; so is each other part of the items,
                   which has the shape of the sequence, such as labels of tokens
        segments   int32[size], 1 for the first sequence of the row, 2 for the second …, 0 behind the last one
        positions  int32[size], places within the sequence, from 0

    so that attention can be kept inside of `segments`, and losses to where they are not 0.

    Args:
        sequences: a map-style Dataset, a table, or a list of arrays or lists of numbers.
        size: length of a row.
        part: of an item, which is the sequence.
        lengths: int64[N] of all sequences, or the name of the attribute or column that has them, which is then not
            packed; None: every one is read once.
        pad: what a row is filled up with: one number, or one for each part, by its name.
        names: of the parts of items that are tuples.

    Attributes:
        members: for each row, the numbers of its sequences, int64.

    Raises:
        PlanError: a sequence is longer than a row or empty; items have no such part, or another one that cannot be
            packed beside it; or `pad` names others than their parts. Where `lengths` are given, some of that is raised
            when the row is made.
        UnlikeItemsError: sequences of one row differ in their parts.
    """

    def __init__(
        self,
        sequences: Any,
        size: int,
        *,
        part: str = "tokens",
        lengths: ArrayLike | str | None = None,
        pad: float | Mapping[str, float] = 0,
        names: Names = None,
    ) -> None:
        self._source, self._size, self._part, self._pad = source_of(sequences), size, part, pad
        self._names: Names = names if names is not None else part
        self._unpacked = lengths if isinstance(lengths, str) else None
        Padding.of(pad if isinstance(pad, Mapping) else {part: pad}, ())  # refuses what is no number
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
        sequences = [self._parts(int(number)) for number in self.members[index]]
        require_same_parts(sequences, "row")
        lengths = [len(parts[self._part]) for parts in sequences]
        segments, positions = np.zeros(self._size, np.int32), np.zeros(self._size, np.int32)
        end = sum(lengths)
        if end > self._size:
            raise PlanError(
                f"The sequences of row {index} have {end:,} tokens together, and a row has {self._size:,}.",
                "They are longer than `lengths` said.",
                "give the right lengths, or none.",
            )
        segments[:end] = np.repeat(np.arange(1, len(lengths) + 1), lengths)
        positions[:end] = np.concatenate([np.arange(length) for length in lengths])
        return {**self._row(sequences), "segments": segments, "positions": positions}

    def _row(self, sequences: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
        pads = self._pad if isinstance(self._pad, Mapping) else dict.fromkeys(sequences[0], self._pad)
        if pads.keys() != sequences[0].keys():
            raise PlanError(
                f"pad names {', '.join(map(repr, pads))}, and items have {', '.join(map(repr, sequences[0]))}.",
                "Each part of a row is filled up with a number.",
                "name each of them in pad, or give one number for all.",
            )
        row = {}
        for name, pad in pads.items():
            arrays = [parts[name] for parts in sequences]
            (row[name],) = rows_filled(arrays, [np.concatenate(arrays)], self._size, pad, name)
        return row

    def _length(self, number: int) -> int:
        """One that cannot be made gets a row of its own: no other one is lost with it."""
        try:
            return len(self._parts(number)[self._part])
        except BadRecord:
            return self._size

    def _parts(self, number: int) -> dict[str, NDArray[Any]]:
        """The sequence with this number, and what is packed beside it."""
        (item,) = self._source.items(np.array([number]))
        if isinstance(item, Damaged):
            raise BadRecord(item.reason)
        if isinstance(item, list) and all(isinstance(token, int | float) for token in item):
            arrays = {self._part: as_array(item)}
            _require_packable(arrays, self._part, number)
            return arrays
        (parts,) = parts_of([item], self._names)
        if self._part not in parts:
            raise PlanError(
                f"An item has {', '.join(map(repr, parts))}, and no {self._part!r}.",
                "That part is the sequence that is packed.",
                "name it: PackedSequences(…, part=NAME).",
            )
        arrays = {name: whole_part(name, value) for name, value in parts.items() if name != self._unpacked}
        _require_packable(arrays, self._part, number)
        return arrays


def _require_packable(arrays: Mapping[str, NDArray[Any]], part: str, number: int) -> None:
    shape = arrays[part].shape
    if shape == () or arrays[part].dtype.kind not in "biufc":
        raise PlanError(
            f"{part!r} of item {number} is {arrays[part].dtype} of shape {list(shape)}.",
            "A sequence is an array of numbers.",
            "let each item be, or have, an array or a list of numbers.",
        )
    for name, array in arrays.items():
        if array.shape != shape or array.dtype.kind not in "biufc":
            raise PlanError(
                f"{name!r} of item {number} is {array.dtype} of shape {list(array.shape)}, and {part!r} has the shape "
                f"{list(shape)}.",
                "What is packed beside a sequence has as many numbers, each at the place of one of the sequence.",
                f"leave {name!r} out of the items, or give it the shape of {part!r}.",
            )
        if name in _OWN:
            raise PlanError(
                f"Items have a part {name!r}.",
                "A row has an array of that name, which says where its sequences are.",
                "call the part something else, or leave it out of the items.",
            )


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
