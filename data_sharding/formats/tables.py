"""What Parquet and Arrow files have in common: rows are records, and a group of rows is decoded together.

A catalog's `offsets` are row numbers here, and its `lengths` nominal: the file's bytes, shared among the groups as
their uncompressed bytes are, then evenly among rows. Together they are the file's size; where it has more rows than
bytes, some are 0.

Damage costs its group, which a reader can mask: pyarrow decodes all of one or nothing.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import CorruptRecordError
from data_sharding.formats.groups_on_disk import GroupsOnDisk
from data_sharding.formats.record_format import Damaged, RecordFormat, RecordIndex, Unpacked
from data_sharding.formats.row_group import RowGroup, refuse_beyond_int64
from data_sharding.formats.row_source import RowSource, TableFile, decoding_errors, named_rows, unreadable
from data_sharding.formats.table_columns import Columns, choose_columns
from data_sharding.storage import ByteSource, FileEntry, is_remote, open_source
from data_sharding.storage.file_cache import FileCache


@dataclass(frozen=True)
class TableFormat(RecordFormat):
    """`RecordFormat` for tables. Payloads are a column's bytes, or rows as serialized tf.train.Examples."""

    # the column of byte strings that are payloads, or Hugging Face's images and sounds (structs of bytes and path);
    # default: the only column, if it is such a one, or the only one beside one of integers; otherwise payloads are
    # Examples of all columns but the labels
    data: str = ""
    # the column of integer labels; default: that of integers beside the only one of byte strings, or none
    label: str = ""
    # the columns to read, beside those two; default: all. A struct's name stands for its fields
    columns: tuple[str, ...] = ()
    offset_unit: ClassVar[str] = "row"

    @staticmethod
    def open_table(file: Any, is_remote: bool) -> TableFile:
        """The table in a seekable file, which is behind a URL or not. Raises as pyarrow, or PlanError without it."""
        raise NotImplementedError

    def scan(self, path: str, source: ByteSource, check_data: bool) -> RecordIndex:
        """The footer and the labels are read; with `check_data`, all that payloads are made of.

        Raises also PlanError (pyarrow is not installed) and ExampleError (other types, too large integers).
        """
        try:
            with source.file() as file:
                table = self.open_table(file, is_remote(path))
                columns = choose_columns(path, table.schema, *self._chosen)
                lengths = _lengths(table, columns, source.size())
                rows = np.arange(len(lengths), dtype=np.int64)
                groups = np.repeat(np.arange(len(table.counts), dtype=np.int32), table.counts)
                index = RecordIndex(rows, lengths, layout=columns.layout(table.schema), row_groups=groups)
                if columns.label:
                    index = _labelled(path, table, columns.label, index)
                damage = _damage(path, table, columns) if check_data else []
        except decoding_errors() as error:
            raise _refusal(path, 0, unreadable("the file", error)) from error
        return index._replace(damage=(*index.damage, *damage))

    def open(self, entry: FileEntry) -> ByteSource:
        return RowSource(entry, open_source(entry), self.open_table, self._chosen)

    def open_keeping(self, entry: FileEntry, cache: FileCache) -> ByteSource:
        groups = GroupsOnDisk(entry, cache)
        return RowSource(entry, open_source(entry), self.open_table, self._chosen, groups)

    def example_label(self, entry: FileEntry) -> str | None:
        with open_source(entry).file() as file:
            columns = choose_columns(entry.path, self.open_table(file, is_remote(entry.path)).schema, *self._chosen)
        return None if columns.data else columns.label

    @property
    def _chosen(self) -> tuple[str, str, tuple[str, ...]]:
        return self.data, self.label, self.columns

    def unpack(self, raw: list[bytes], crcs: NDArray[np.uint32] | None, check: bool) -> Unpacked:  # noqa: ARG002
        return Unpacked(raw, np.array([not isinstance(payload, Damaged) for payload in raw], np.bool_))


def _lengths(table: TableFile, columns: Columns, size: int) -> NDArray[np.int64]:
    counts = table.counts
    if counts.sum() > size:
        # Equal values take next to nothing, and so does a footer that lies: the rows are counted by decoding a column.
        for group in range(len(counts)):
            table.read(group, columns.payload[:1])
    weights = np.where(counts > 0, table.sizes, 0)
    ends = np.concatenate([[0], np.cumsum(weights)]) / max(weights.sum(), 1) * size
    parts = [
        np.diff(np.linspace(begin, end, count + 1).astype(np.int64))
        for (begin, end), count in zip(itertools.pairwise(ends.tolist()), counts.tolist(), strict=True)
    ]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _labelled(path: str, table: TableFile, name: str, index: RecordIndex) -> RecordIndex:
    """The index without rows whose label is null or damaged: nothing would reveal those when they are read."""
    import pyarrow as pa

    good, values = np.zeros(len(index.offsets), np.bool_), [np.empty(0, np.int64)]

    def look(group: int, first: int, count: int) -> list[CorruptRecordError]:
        content = table.read(group, [name])
        refuse_beyond_int64(path, content, [name])
        labels = content.column(name)
        values.append(labels.drop_null().cast(pa.int64()).to_numpy().astype(np.int64))
        good[first : first + count] = valid = labels.is_valid().to_numpy()
        rows = (np.flatnonzero(~valid) + first).tolist()
        return [_refusal(path, row, f"row {row} is without a label.") for row in rows]

    damage = tuple(_look_at_groups(path, table, look))
    assert index.row_groups is not None
    return index._replace(
        offsets=index.offsets[good],
        lengths=index.lengths[good],
        labels=np.concatenate(values),
        row_groups=index.row_groups[good],
        damage=damage,
    )


def _damage(path: str, table: TableFile, columns: Columns) -> list[CorruptRecordError]:
    """All groups that cannot be decoded, and all rows without a payload. A reader finds them, too."""

    def look(group: int, first: int, count: int) -> list[CorruptRecordError]:
        content = table.read(group, columns.payload)
        refuse_beyond_int64(path, content, columns.features)
        decoded = RowGroup(content, columns)
        faults = map(decoded.fault, range(count))
        return [_refusal(path, row, f"row {row}: {fault}") for row, fault in enumerate(faults, first) if fault]

    return _look_at_groups(path, table, look)


def _look_at_groups(
    path: str, table: TableFile, look: Callable[[int, int, int], list[CorruptRecordError]]
) -> list[CorruptRecordError]:
    """What `look` finds in each group, given its number, first row and rows; or why it cannot be decoded."""
    damage, first = [], 0
    for group, count in enumerate(table.counts.tolist()):
        try:
            damage += look(group, first, count)
        except decoding_errors() as error:
            damage.append(_refusal(path, first, unreadable(named_rows(table, group), error)))
        first += count
    return damage


def _refusal(path: str, row: int, fact: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"{path}: {fact[0].lower()}{fact[1:]}",
        "Nothing can be made of it.",
        "restore the file from its source, write it again, or leave such rows out (on_corrupt mask).",
        path=path,
        offset=row,
    )
