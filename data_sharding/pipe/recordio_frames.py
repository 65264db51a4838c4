"""RecordIO frames from a stream.

A part is `u32le 0xced7230a | u32le (cflag << 29 | length) | data | zeros to a multiple of 4`; cflag 0 is a whole
record, 1 the first part of one, 2 a middle part, 3 the last. Writers of dmlc begin a new part where the aligned magic
number occurs in the data, and leave it out; its readers put it back. Source: dmlc-core, include/dmlc/recordio.h.
SageMaker's reader joins parts as they are. The format has no checksum: damage inside a payload goes unseen.
"""

from __future__ import annotations

import struct
from typing import Final, Literal

from data_sharding.pipe.frames import Carry, FrameError

MAGIC: Final = 0xCED7230A
HEADER: Final = struct.Struct("<II")
_MAGIC_BYTES: Final = struct.pack("<I", MAGIC)
_LENGTH_BITS: Final = 29
_LENGTH_MASK: Final = (1 << _LENGTH_BITS) - 1
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)


class RecordIOFrames:
    """A `FrameParser`. `multipart` says whether a record's parts are joined by the magic number ("dmlc") or not."""

    def __init__(self, multipart: Literal["dmlc", "sagemaker"] = "dmlc") -> None:
        self._carry = Carry(HEADER.size)
        self._joint = _MAGIC_BYTES if multipart == "dmlc" else b""
        self._parts: list[bytes] = []
        self._record_offset = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        data = self._carry.join(chunk)
        if data is None:
            return []
        payloads: list[bytes] = []
        frame, need, end = 0, None, len(data)
        while end - frame >= HEADER.size:
            cflag, length = self._header(data, frame)
            after = frame + HEADER.size + (length + 3 & ~3)
            if after > end:
                need = after - frame
                break
            part = data[frame + HEADER.size : frame + HEADER.size + length]
            if cflag == _WHOLE:
                payloads.append(part)
            else:
                payloads.extend(self._take_part(cflag, part, frame))
            frame = after
        self._carry.keep(data, frame, need)
        return payloads

    def finish(self) -> None:
        if self._carry.size:
            raise FrameError(f"it ends {self._carry.size} bytes into a record's part", self._carry.offset)
        if self._parts:
            raise FrameError("it ends between two parts of a record", self._record_offset)

    def _header(self, data: bytes, frame: int) -> tuple[int, int]:
        magic, word = HEADER.unpack_from(data, frame)
        if magic != MAGIC:
            raise FrameError(f"a record begins with {magic:#010x} instead of {MAGIC:#x}", self._carry.offset + frame)
        cflag = word >> _LENGTH_BITS
        inside = bool(self._parts)
        if cflag not in ((_MIDDLE, _LAST) if inside else (_WHOLE, _FIRST)):
            where = "inside" if inside else "outside"
            raise FrameError(
                f"a part marked {cflag} stands {where} a record of several parts", self._carry.offset + frame
            )
        return cflag, word & _LENGTH_MASK

    def _take_part(self, cflag: int, part: bytes, frame: int) -> list[bytes]:
        if cflag == _FIRST:
            self._record_offset = self._carry.offset + frame
        self._parts.append(part)
        if cflag != _LAST:
            return []
        record = self._joint.join(self._parts)
        self._parts = []
        return [record]
