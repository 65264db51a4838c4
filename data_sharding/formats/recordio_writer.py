"""Write RecordIO files, whole or not at all."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, get_args

from data_sharding.atomic import atomic_file
from data_sharding.errors import PlanError
from data_sharding.formats.recordio_framing import (
    FIRST,
    HEADER,
    LAST,
    LENGTH_BITS,
    LENGTH_MASK,
    MAGIC,
    MIDDLE,
    WHOLE,
    Multipart,
    padded,
    split,
)
from data_sharding.formats.unchecked import check_choice


class RecordIOWriter:
    """Context manager that writes one RecordIO file.

    The file gets its name when the block ends well; an exception leaves neither it nor a temporary file.

    Args:
        multipart: "dmlc" splits payloads at aligned magic numbers, as dmlc and MXNet do, which lets their readers find
            a record's start from the middle of a file; "sagemaker" writes each payload as one part, as SageMaker's
            SDK does.

    Raises:
        PlanError: no such `multipart`.
    """

    def __init__(self, path: str | Path, multipart: Multipart = "dmlc") -> None:
        check_choice("recordio", "multipart", multipart, get_args(Multipart))
        self.path = Path(path)
        self._multipart = multipart
        self._stack = contextlib.ExitStack()
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        self._file = self._stack.enter_context(atomic_file(self.path))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file = None
        self._stack.__exit__(kind, error, traceback)

    def write(self, data: bytes) -> None:
        """Append one record.

        Raises:
            PlanError: called outside the `with` block, or 2**29 bytes or more, which the format cannot hold.
        """
        if self._file is None:
            raise PlanError(
                f"The writer of {self.path} is not open.",
                "Records can only be written between its opening and its closing.",
                "write inside `with RecordIOWriter(path) as writer:`.",
            )
        if len(data) > LENGTH_MASK:
            raise PlanError(
                f"A record of {len(data)} bytes was to be written to {self.path}.",
                f"A RecordIO record holds at most {LENGTH_MASK} bytes.",
                "write it to a TFRecord file instead.",
            )
        self._file.write(_framed(data, self._multipart))


def _framed(data: bytes, multipart: Multipart) -> bytes:
    parts = split(data) if multipart == "dmlc" else [data]
    if len(parts) == 1:
        return _part(WHOLE, data)
    flags = [FIRST, *[MIDDLE] * (len(parts) - 2), LAST]
    return b"".join(map(_part, flags, parts))


def _part(cflag: int, data: bytes) -> bytes:
    return HEADER.pack(MAGIC, cflag << LENGTH_BITS | len(data)) + data + bytes(padded(len(data)) - len(data))
