"""Arrow IPC files, read with pyarrow: each row is a record, and record batches are decoded and kept (see `tables`).

Both kinds are a sequence of messages: the schema, dictionaries, record batches
(https://arrow.apache.org/docs/format/Columnar.html). The stream format, as Hugging Face's `save_to_disk` writes it, is
nothing else; the file format (Feather 2) puts a magic number before them and a footer after them. pyarrow reads a
stream from its beginning only, so what is looked up here is where each message begins and how many rows it has; a batch
is then read as a stream of the schema, of the dictionaries before it and of itself. There are no checksums.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from data_sharding.formats.pyarrow_extra import pyarrow_module
from data_sharding.formats.table_columns import flat_schema, flat_table
from data_sharding.formats.tables import TableFormat

_MAGIC: Final = b"ARROW1\0\0"
_FEATHER_1: Final = b"FEA1"
_CONTINUATION: Final = b"\xff\xff\xff\xff"
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3  # MessageHeader in Arrow's Message.fbs


class _Message(NamedTuple):
    kind: int
    begin: int
    end: int
    rows: int


class ArrowTable:
    """`TableFile` over an Arrow IPC file of either kind. Raises ValueError: it is none."""

    def __init__(self, file: Any, is_remote: bool) -> None:  # noqa: ARG002  what is asked for is read, and nothing else
        self._file = file
        messages = list(_messages(file))
        if not messages or messages[0].kind != _SCHEMA:
            raise ValueError("it does not begin with a schema")
        self._batches: list[list[_Message]] = []  # each with what has to be read before it
        before: list[_Message] = []
        for message in messages:
            if message.kind == _BATCH:
                self._batches.append([*before, message])
            else:
                before.append(message)
        self._top = pyarrow_module("pyarrow.ipc").open_stream(self._bytes(before[:1])).schema
        self.schema = flat_schema(self._top)
        self.counts = np.array([batch[-1].rows for batch in self._batches], np.int64)
        self.sizes = np.array([batch[-1].end - batch[-1].begin for batch in self._batches], np.float64)

    def read(self, group: int, names: Sequence[str]) -> Any:
        arrow, ipc = pyarrow_module("pyarrow"), pyarrow_module("pyarrow.ipc")
        tops = [
            index for index, field in enumerate(self._top) if any(f"{n}.".startswith(f"{field.name}.") for n in names)
        ]
        options = ipc.IpcReadOptions(included_fields=tops, use_threads=False)
        stream = ipc.open_stream(self._bytes(self._batches[group]), options=options)
        table = flat_table(arrow.Table.from_batches([stream.read_next_batch()]))
        if table.num_rows != self.counts[group]:
            raise ValueError(f"record batch {group} has {table.num_rows} rows")
        chosen = table.select(list(names))
        chosen.validate(full=True)  # offsets that point anywhere would be followed
        return chosen

    def _bytes(self, messages: Sequence[_Message]) -> bytes:
        parts = [_read(self._file, message.begin, message.end) for message in messages]
        return b"".join([*parts, _CONTINUATION, bytes(4)])


def _messages(file: Any) -> Iterator[_Message]:
    """The messages of a stream, or of the stream inside a file. Raises ValueError."""
    size, at = file.seek(0, 2), 0
    head = _read(file, 0, min(len(_MAGIC), size))
    if head.startswith(_FEATHER_1):
        raise ValueError("it is of Feather's first version: write it again")
    if head == _MAGIC:
        at = len(_MAGIC)
    while at + 4 <= size:
        prefix = _read(file, at, min(at + 8, size))
        begin = at + 4 * prefix.startswith(_CONTINUATION)  # which files from before Arrow 0.15 do not have
        length = int.from_bytes(_read(file, begin, begin + 4), "little", signed=True)
        if length == 0:
            return  # the end of the stream; of a file, the footer follows
        metadata = _read(file, begin + 4, begin + 4 + length)
        kind, body, rows = _described(metadata)
        end = begin + 4 + length + body
        if not at < end <= size or min(length, body, rows) < 0:
            raise ValueError(f"it ends inside the message that begins at byte offset {at}")
        yield _Message(kind, at, end, rows)
        at = end


def _described(metadata: bytes) -> tuple[int, int, int]:
    """Kind, bytes of the body and rows of a message, from its flatbuffer: Message.fbs and, inside, RecordBatch."""
    message = _number(metadata, 0, 4)
    kind = _number(metadata, place, 1) if (place := _field(metadata, message, 1)) else 0
    body = _number(metadata, place, 8) if (place := _field(metadata, message, 3)) else 0
    if kind != _BATCH or not (place := _field(metadata, message, 2)):
        return kind, body, 0
    batch = place + _number(metadata, place, 4)
    return kind, body, _number(metadata, place, 8) if (place := _field(metadata, batch, 0)) else 0


def _field(buffer: bytes, table: int, number: int) -> int:
    """Where a flatbuffer's table has its field of that number; 0: nowhere, it has the default."""
    directory = table - _number(buffer, table, 4)
    if 4 + 2 * number >= _number(buffer, directory, 2):
        return 0
    offset = _number(buffer, directory + 4 + 2 * number, 2)
    return table + offset if offset else 0


def _number(buffer: bytes, at: int, width: int) -> int:
    if not 0 <= at <= len(buffer) - width:
        raise ValueError("the description of a message points outside of it")
    return int.from_bytes(buffer[at : at + width], "little", signed=width >= 4)


def _read(file: Any, begin: int, end: int) -> bytes:
    file.seek(begin)
    content: bytes = file.read(max(end - begin, 0))
    if len(content) != end - begin:
        raise ValueError(f"it ends at byte offset {begin + len(content)}, inside a message")
    return content


@dataclass(frozen=True)
class ArrowFormat(TableFormat):
    """`RecordFormat` for Arrow IPC files, streams and Feather 2; its options are those of `TableFormat`."""

    name = "arrow"
    patterns = ("*.arrow", "*.feather")
    open_table = staticmethod(ArrowTable)
