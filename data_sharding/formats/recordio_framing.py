"""The bytes around a RecordIO payload.

A part is `u32le 0xced7230a | u32le (cflag << 29 | length) | data | padding to a multiple of 4`; cflag 0 is a whole
record, 1 the first part of one, 2 a middle part, 3 the last. Writers of dmlc begin a new part where the magic number
occurs in the data at a multiple of 4, and leave it out; its readers put it back between the parts. SageMaker's SDK
never splits, and its reader joins parts as they are. Source: dmlc-core, include/dmlc/recordio.h and src/recordio.cc.
The format has no checksum: damage inside a payload goes unseen.
"""

from __future__ import annotations

import struct
from typing import Final, Literal

Multipart = Literal["dmlc", "sagemaker"]
"""Whether the parts of a record are joined by the magic number ("dmlc") or by nothing ("sagemaker")."""

MAGIC: Final = 0xCED7230A
MAGIC_BYTES: Final = struct.pack("<I", MAGIC)
HEADER: Final = struct.Struct("<II")
LENGTH_BITS: Final = 29
LENGTH_MASK: Final = (1 << LENGTH_BITS) - 1
WHOLE, FIRST, MIDDLE, LAST = range(4)


def padded(length: int) -> int:
    """Bytes that a part's data takes in the file."""
    return length + 3 & ~3


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
    """Cut at every magic number that stands at a multiple of 4 of the payload, leaving the magic numbers out."""
    parts, start, found = [], 0, payload.find(MAGIC_BYTES)
    while found >= 0:
        if found % 4 == 0:
            parts.append(payload[start:found])
            start = found + 4
        # Two occurrences never overlap: the four bytes of the magic number differ from each other.
        found = payload.find(MAGIC_BYTES, found + 4)
    return [*parts, payload[start:]]
