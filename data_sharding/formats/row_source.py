"""A file of rows as a source of bytes: rows cannot be read one by one, so their groups are decoded and kept."""

import functools
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import ExampleError
from data_sharding.formats.groups_on_disk import GroupsOnDisk
from data_sharding.formats.pyarrow_extra import pyarrow_module
from data_sharding.formats.record_format import Damaged
from data_sharding.formats.row_group import RowGroup, refuse_beyond_int64
from data_sharding.formats.table_columns import Columns, choose_columns
from data_sharding.kept_blocks import KEPT
from data_sharding.storage import ByteSource, FileEntry, is_remote
from data_sharding.storage.byte_source import SourceFile
from data_sharding.storage.redaction import redacted
from data_sharding.storage.torn_maps import ReadOnlyMap


class TableFile(Protocol):
    """A table in a file whose rows are decoded group by group."""

    schema: Any  # pyarrow's, without structs (see `flat_schema`)
    counts: NDArray[np.int64]  # rows of each group
    sizes: NDArray[np.float64]  # bytes of each group, in any unit

    def read(self, group: int, names: Sequence[str]) -> Any:
        """These columns of a group as a pyarrow Table; a field of a struct is "column.field". Raises as pyarrow."""


TableOpener = Callable[[Any, bool], TableFile]
"""Opens a table from a seekable file, which may be slow to answer (a URL). Raises as pyarrow."""


class Undecodable(NamedTuple):
    """A group of rows that is damaged, and why."""

    reason: str
    nbytes: int = 0

    def payload(self, row: int) -> bytes:  # noqa: ARG002  all are the same
        return Damaged.because(self.reason)


class RowSource:
    """A `ByteSource` whose spans are rows: span [i, j) is the payload of row i, whatever j is; or a `Damaged` one.

    Groups that were decoded are kept as long as `kept_blocks.KEPT` has room for them. One that is needed again after
    that is kept on the disk, if there is a place for it.
    """

    def __init__(
        self,
        entry: FileEntry,
        source: ByteSource,
        opener: TableOpener,
        chosen: tuple[str, str, tuple[str, ...]] = ("", "", ()),
        on_disk: GroupsOnDisk | None = None,
    ) -> None:
        self._entry, self._source, self._opener, self._chosen = entry, source, opener, chosen
        self._on_disk, self._decoded = on_disk, set[int]()
        self._lock = threading.Lock()
        self._groups: dict[Hashable, RowGroup | Undecodable] = {}

    def size(self) -> int:
        return self._source.size()

    def __getitem__(self, span: slice) -> bytes:
        return self.spans([span.start or 0], [span.stop])[0]

    def spans(self, begins: Sequence[int], ends: Sequence[int]) -> list[bytes]:  # noqa: ARG002
        """The payloads of rows `begins`; each group is decoded once. Raises ChangedDataError or ExampleError."""
        rows = np.asarray(begins, np.int64)
        # One lock for all: threads that wait for the same group would each decode it otherwise.
        with self._lock:
            try:
                table, columns, firsts = self._opened
            except decoding_errors() as error:
                return [Damaged.because(unreadable("The file", error))] * len(rows)
            groups = np.searchsorted(firsts, rows, "right") - 1
            places, numbers = (rows - firsts[groups]).tolist(), groups.tolist()
            payloads, torn = self._payloads(table, columns, numbers, places)
            while torn:  # what was read there were zeros
                for number in torn:
                    self._give_up(number, columns)
                payloads, torn = self._payloads(table, columns, numbers, places)
            KEPT.used(self, dict.fromkeys(numbers))
            return payloads

    def file(self) -> BinaryIO:
        return cast(BinaryIO, exact_file(self._source))

    def drop(self, key: Hashable) -> None:
        self._groups.pop(key, None)

    @functools.cached_property
    def _opened(self) -> tuple[TableFile, Columns, NDArray[np.int64]]:
        """The table, its columns, and the first row of each group."""
        table = self._opener(exact_file(self._source), is_remote(self._entry.path))
        columns = choose_columns(self._entry.path, table.schema, *self._chosen)
        return table, columns, np.cumsum(table.counts) - table.counts

    def _payloads(
        self, table: TableFile, columns: Columns, groups: list[int], rows: list[int]
    ) -> tuple[list[bytes], set[int]]:
        """Payloads, and groups whose map was cut short meanwhile."""
        payloads: list[bytes | None] = []
        maps: dict[int, ReadOnlyMap] = {}
        group: RowGroup | Undecodable | None = None
        last = -1
        for number, row in zip(groups, rows, strict=True):
            if group is None or number != last:  # rows in order need one group at a time
                group, last = self._group(table, columns, number), number
                if isinstance(group, RowGroup) and group.map is not None:
                    maps[number] = group.map
            try:
                payloads.append(group.payload(row))
            except ExampleError as error:  # of this row alone: the types of columns were looked at before
                payloads.append(Damaged.because(f"{error.fact} {error.conflict}"))
            except decoding_errors() as error:  # among others, a row that is not there
                payloads.append(Damaged.because(unreadable("The row", error)))
        torn = {number for number, content in maps.items() if content.torn}
        if None in payloads:
            null = Damaged.because(f"The row has no value in the column {columns.data!r}.")
            return [null if payload is None else payload for payload in payloads], torn
        return cast(list[bytes], payloads), torn

    def _group(self, table: TableFile, columns: Columns, group: int) -> RowGroup | Undecodable:
        if (kept := self._groups.get(group)) is not None:
            return kept
        if (mapped := self._mapped(group, columns)) is not None:
            return mapped
        try:
            content = table.read(group, columns.payload)
            refuse_beyond_int64(redacted(self._entry.path), content, columns.features)
            decoded: RowGroup | Undecodable = RowGroup(content, columns)
        except decoding_errors() as error:
            decoded = Undecodable(unreadable(named_rows(table, group), error))
        if (size := self._source.size()) != self._entry.size:
            raise self._entry.changed(f"had {self._entry.size} bytes when it was indexed and has {size} now")
        if self._on_disk is not None and group in self._decoded and isinstance(decoded, RowGroup):
            self._on_disk.keep(group, content)
            if (mapped := self._mapped(group, columns)) is not None:
                return mapped
        self._decoded.add(group)
        self._note(group, decoded)
        return decoded

    def _mapped(self, group: int, columns: Columns) -> RowGroup | None:
        """A group that is on the disk, which takes no memory that others could not use."""
        found = None if self._on_disk is None else self._on_disk.find(group, columns.payload)
        if found is None:
            return None
        mapped = RowGroup(found[0], columns, found[1])
        self._note(group, mapped)
        return mapped

    def _note(self, group: int, decoded: RowGroup | Undecodable) -> None:
        self._groups[group] = decoded
        KEPT.add(self, group, decoded.nbytes)

    def _give_up(self, group: int, columns: Columns) -> None:
        """A group on the disk is damaged: it is decoded again."""
        self._groups.pop(group, None)
        if self._on_disk is not None:
            self._on_disk.give_up(group, columns.payload)


def exact_file(source: ByteSource) -> SourceFile:
    """A seekable file that reads what it is asked for and nothing ahead: pyarrow knows what it needs."""
    return SourceFile(lambda begin, end: source.spans([begin], [end])[0], source.size())


def decoding_errors() -> tuple[type[Exception], ...]:
    """What pyarrow raises for damaged files, found by trying."""
    arrow: type[Exception] = pyarrow_module("pyarrow").ArrowException
    return (arrow, OSError, ValueError, KeyError, IndexError, OverflowError, MemoryError)


def unreadable(what: str, error: Exception) -> str:
    """A sentence that says that `what` cannot be decoded, and why."""
    reason = str(error).partition("\n")[0].rstrip(".")
    return f"{what} cannot be read as a table ({type(error).__name__}: {reason})."


def named_rows(table: TableFile, group: int) -> str:
    """The rows of a group, for people."""
    first = int(table.counts[:group].sum())
    return f"Rows {first} to {first + int(table.counts[group]) - 1} (row group {group})"
