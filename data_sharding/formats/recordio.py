"""RecordIO files of dmlc, MXNet and SageMaker: finding their records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final, get_args

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import CorruptRecordError
from data_sharding.formats.gzip_files import GZIP_MAGIC, gzip_refused
from data_sharding.formats.interface import ByteFormat, RecordIndex, Unpacked, check_choice
from data_sharding.formats.recordio_framing import (
    FIRST,
    HEADER,
    LAST,
    LENGTH_BITS,
    LENGTH_MASK,
    MAGIC,
    MAGIC_BYTES,
    WHOLE,
    Multipart,
    expected_flags,
    padded,
)
from data_sharding.storage import ByteSource


@final
@dataclass(frozen=True)
class RecordIOFormat(ByteFormat):
    """`RecordFormat` for RecordIO files. A record's span is its whole frame: all its parts with their headers.

    Args:
        multipart: how the parts of a record are joined; see `recordio_framing`.

    Raises:
        PlanError: no such `multipart`.
    """

    multipart: Multipart = "dmlc"
    name: ClassVar[str] = "recordio"
    patterns: ClassVar[tuple[str, ...]] = ("*.rec", "*.recordio")

    def __post_init__(self) -> None:
        check_choice(self.name, "multipart", self.multipart, get_args(Multipart))

    def scan(self, path: str, source: ByteSource, check_data: bool) -> RecordIndex:  # noqa: ARG002
        """Only the 8 header bytes of each part are touched; there is no checksum that `check_data` could compare."""
        offsets: list[int] = []
        lengths: list[int] = []
        record, frame, end, damage = 0, 0, source.size(), None
        while frame < end:
            head = source[frame : frame + HEADER.size]
            word = HEADER.unpack(head)[1] if len(head) == HEADER.size else 0
            after = frame + HEADER.size + padded(word & LENGTH_MASK)
            cflag = word >> LENGTH_BITS
            if head[:4] != MAGIC_BYTES[: len(head)] or cflag not in expected_flags(frame > record) or after > end:
                damage = _damage(path, head, frame, record, len(offsets), end)
                break
            frame = after
            if cflag in (WHOLE, LAST):
                offsets.append(record)
                lengths.append(after - record)
                record = after
        if damage is None and record < end:
            damage = _cut_short(path, record, len(offsets), "its last part is missing")
        columns = np.array(offsets, np.int64), np.array(lengths, np.int64)
        return RecordIndex(*columns, damage=() if damage is None else (damage,))

    def unpack(self, raw: list[bytes], crcs: NDArray[np.uint32] | None, check: bool) -> Unpacked:  # noqa: ARG002
        joint = MAGIC_BYTES if self.multipart == "dmlc" else b""
        payloads = [_joined(span, joint) for span in raw]
        intact = np.fromiter((payload is not None for payload in payloads), np.bool_, len(payloads))
        return Unpacked([b"" if payload is None else payload for payload in payloads], intact)


def _joined(span: bytes, joint: bytes) -> bytes | None:
    """The payload of one framed record; None where the frame is not sound or does not fill the span."""
    parts: list[bytes] = []
    frame = 0
    while frame + HEADER.size <= len(span):
        magic, word = HEADER.unpack_from(span, frame)
        cflag, length = word >> LENGTH_BITS, word & LENGTH_MASK
        after = frame + HEADER.size + padded(length)
        if magic != MAGIC or cflag not in expected_flags(bool(parts)) or after > len(span):
            return None
        parts.append(span[frame + HEADER.size : frame + HEADER.size + length])
        if cflag in (WHOLE, LAST):
            return joint.join(parts) if after == len(span) else None
        frame = after
    return None


def _damage(path: str, head: bytes, frame: int, record: int, number: int, end: int) -> CorruptRecordError:
    """Why the part that begins at byte `frame`, of record `number` that begins at byte `record`, is not sound.

    Raises:
        CorruptRecordError: it is the first, and shows that the file is of another format.
    """
    if head[:4] != MAGIC_BYTES[: len(head)]:
        if frame == 0:
            raise gzip_refused(path) if head.startswith(GZIP_MAGIC) else _not_recordio(path, head)
        return _lost(path, frame, number, f"begins with {head[:4].hex()} instead of {MAGIC_BYTES.hex()}")
    if len(head) < HEADER.size:
        return _cut_short(path, record, number, f"its part at byte offset {frame} has {len(head)} of 8 header bytes")
    word = HEADER.unpack(head)[1]
    cflag, needed = word >> LENGTH_BITS, HEADER.size + padded(word & LENGTH_MASK)
    if cflag in expected_flags(frame > record):
        left = end - frame
        return _cut_short(
            path, record, number, f"its part at byte offset {frame} needs {needed} bytes, {left} are left"
        )
    if cflag > LAST:
        return _lost(path, frame, number, f"is marked {cflag}, which means nothing")
    if frame == record:
        return _lost(path, frame, number, f"is marked {cflag}, the rest of a record whose start is missing")
    kind = "starts another record" if cflag == FIRST else "is another record"
    return _lost(path, frame, number, f"{kind}, while the one of byte offset {record} has no end")


def _not_recordio(path: str, head: bytes) -> CorruptRecordError:
    return CorruptRecordError(
        f"{path} is not a RecordIO file.",
        f"It begins with {head[:4].hex()} at byte offset 0, where every RecordIO file has {MAGIC_BYTES.hex()}.",
        "check the path, or name the format that the file has.",
        path=path,
        offset=0,
    )


def _lost(path: str, frame: int, number: int, how: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"The part at byte offset {frame} of {path}, where record {number} was expected, {how}.",
        "Without its framing the rest of the file cannot be read.",
        path=path,
        offset=frame,
    )


def _cut_short(path: str, record: int, number: int, how: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"{path} ends inside record {number}, which begins at byte offset {record}.",
        f"The file was cut short: {how}.",
        path=path,
        offset=record,
    )
