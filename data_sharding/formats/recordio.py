"""RecordIO files of dmlc, MXNet and SageMaker.

A part is `u32le 0xced7230a | u32le (cflag << 29 | length) | data | padding to a multiple of 4`; cflag 0 is a whole
record, 1 the first part of one, 2 a middle part, 3 the last. Writers of dmlc begin a new part where the magic number
occurs in the data at a multiple of 4, and leave it out; its readers put it back between the parts. SageMaker's SDK
never splits, and its reader joins parts as they are. Source: dmlc-core, include/dmlc/recordio.h and src/recordio.cc.
The format has no checksum: damage inside a payload goes unseen.

MXNet's im2rec packs images into payloads, `u32le flag | f32le label | u64le id | u64le id2 | flag x f32le labels |
image file`. With flag 0 the label is the one in front, else there are `flag` labels. Source: mxnet/recordio.py, pack().
"""

import struct
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.checks import one_of
from data_sharding.errors import CorruptRecordError, ExampleError
from data_sharding.formats.record_format import RecordFormat, RecordIndex, Unpacked, cut_short, refuse_compressed
from data_sharding.storage import ByteSource

Multipart = Literal["dmlc", "sagemaker"]
"""Whether the parts of a record are joined by the magic number ("dmlc") or by nothing ("sagemaker")."""

MAGIC: Final = 0xCED7230A
MAGIC_BYTES: Final = struct.pack("<I", MAGIC)
HEADER: Final = struct.Struct("<II")
LENGTH_BITS: Final = 29
LENGTH_MASK: Final = (1 << LENGTH_BITS) - 1
WHOLE, FIRST, MIDDLE, LAST = range(4)
_IMAGE_HEADER: Final = struct.Struct("<IfQQ")


def expected_flags(inside: bool) -> tuple[int, int]:
    """The cflags that may come next, outside a record of several parts or inside one."""
    return (MIDDLE, LAST) if inside else (WHOLE, FIRST)


def framed(payload: bytes, multipart: Multipart) -> bytes:
    """A record as it is in the file: all its parts with their headers."""
    parts = split(payload) if multipart == "dmlc" else [payload]
    flags = [WHOLE] if len(parts) == 1 else [FIRST, *[MIDDLE] * (len(parts) - 2), LAST]
    heads = (HEADER.pack(MAGIC, flag << LENGTH_BITS | len(part)) for flag, part in zip(flags, parts, strict=True))
    return b"".join(head + part + bytes(-len(part) % 4) for head, part in zip(heads, parts, strict=True))


def split(payload: bytes) -> list[bytes]:
    """Cut at every magic number at a multiple of 4 of the payload, leaving the magic numbers out."""
    parts, start, found = [], 0, payload.find(MAGIC_BYTES)
    while found >= 0:
        if found % 4 == 0:
            parts.append(payload[start:found])
            start = found + 4
        # Two occurrences never overlap: the four bytes of the magic number differ from each other.
        found = payload.find(MAGIC_BYTES, found + 4)
    return [*parts, payload[start:]]


def padded(length: int) -> int:
    """Bytes that a part's data takes in the file."""
    return length + 3 & ~3


@dataclass(frozen=True)
class RecordIOFormat(RecordFormat):
    """`RecordFormat` for RecordIO files. A record's span is its whole frame: all its parts with their headers."""

    multipart: Multipart = "dmlc"
    name = "recordio"
    scans_content = True
    patterns = ("*.rec", "*.recordio")

    def __post_init__(self) -> None:
        one_of("multipart", self.multipart, Multipart)

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
            damage = cut_short(path, record, len(offsets), "its last part is missing")
        return RecordIndex(
            np.array(offsets, np.int64), np.array(lengths, np.int64), damage=() if damage is None else (damage,)
        )

    def unpack(self, raw: list[bytes], crcs: NDArray[np.uint32] | None, check: bool) -> Unpacked:  # noqa: ARG002
        joint = MAGIC_BYTES if self.multipart == "dmlc" else b""
        payloads = [_joined(span, joint) for span in raw]
        return Unpacked([payload or b"" for payload in payloads], np.array([p is not None for p in payloads], bool))


def _joined(span: bytes, joint: bytes) -> bytes | None:
    """The payload of one framed record; None where the frame is not sound or does not fill the span."""
    if len(span) >= HEADER.size:
        magic, length = HEADER.unpack_from(span)  # of a whole record, whose cflag is 0
        if magic == MAGIC and length <= LENGTH_MASK and HEADER.size + padded(length) == len(span):
            return span[HEADER.size : HEADER.size + length]
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

    Raises CorruptRecordError (it is the first, and shows that the file is of another format).
    """
    if head[:4] != MAGIC_BYTES[: len(head)]:
        if frame == 0:
            refuse_compressed(path, head)
            raise CorruptRecordError(
                f"{path} is not a RecordIO file.",
                f"It begins with {head[:4].hex()} at byte offset 0, where every RecordIO file has {MAGIC_BYTES.hex()}.",
                "check the path, or name the format that the file has.",
                path=path,
            )
        how = f"begins with {head[:4].hex()} instead of {MAGIC_BYTES.hex()}"
    elif len(head) < HEADER.size:
        return cut_short(path, record, number, f"its part at byte offset {frame} has {len(head)} of 8 header bytes")
    else:
        word = HEADER.unpack(head)[1]
        cflag, needed = word >> LENGTH_BITS, HEADER.size + padded(word & LENGTH_MASK)
        if cflag in expected_flags(frame > record):
            how = f"its part at byte offset {frame} needs {needed} bytes, {end - frame} are left"
            return cut_short(path, record, number, how)
        how = f"is marked {cflag}, which means nothing"
        if cflag in (MIDDLE, LAST):
            how = f"is marked {cflag}, the rest of a record whose start is missing"
        elif cflag in (WHOLE, FIRST):
            kind = "starts another record" if cflag == FIRST else "is another record"
            how = f"{kind}, while the one of byte offset {record} has no end"
    fact = f"The part at byte offset {frame} of {path}, where record {number} was expected, {how}."
    return CorruptRecordError(fact, "Without its framing the rest of the file cannot be read.", path=path, offset=frame)


class ImageRecord(NamedTuple):
    """One image with its labels."""

    labels: NDArray[np.float32]  # float32[n]; n is 1 for a label in the header
    image_id: int  # the image's number
    image_id2: int  # a second number, 0 where unused
    image: bytes  # the encoded image file


def decode_image_record(payload: bytes) -> ImageRecord:
    """Split a payload into header, labels and image; the image is not decoded.

    Raises ExampleError (the payload is shorter than its header says).
    """
    head = payload[: _IMAGE_HEADER.size].ljust(_IMAGE_HEADER.size, b"\0")
    flag, label, image_id, image_id2 = _IMAGE_HEADER.unpack(head)
    start = _IMAGE_HEADER.size + 4 * flag
    if len(payload) < start:
        fact = f"A payload of {len(payload)} bytes is not an image record."
        conflict = f"Its header and labels alone take {start} bytes."
        raise ExampleError(fact, conflict, "decode these records with the function that fits how they were written.")
    labels = np.frombuffer(payload, "<f4", flag, _IMAGE_HEADER.size) if flag else np.array([label])
    return ImageRecord(labels.astype(np.float32), image_id, image_id2, payload[start:])
