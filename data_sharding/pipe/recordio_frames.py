"""RecordIO frames from a stream; see `formats.recordio` for what they look like."""

from __future__ import annotations

from data_sharding.formats.recordio import (
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
from data_sharding.pipe.frames import Carry, FrameError


class RecordIOFrames:
    """A `FrameParser`. `multipart` says whether a record's parts are joined by the magic number ("dmlc") or not."""

    def __init__(self, multipart: Multipart = "dmlc") -> None:
        self._carry = Carry(HEADER.size)
        self._joint = MAGIC_BYTES if multipart == "dmlc" else b""
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
            after = frame + HEADER.size + padded(length)
            if after > end:
                need = after - frame
                break
            part = data[frame + HEADER.size : frame + HEADER.size + length]
            if cflag == WHOLE:
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
        cflag = word >> LENGTH_BITS
        inside = bool(self._parts)
        if cflag not in expected_flags(inside):
            where = "inside" if inside else "outside"
            raise FrameError(
                f"a part marked {cflag} stands {where} a record of several parts", self._carry.offset + frame
            )
        return cflag, word & LENGTH_MASK

    def _take_part(self, cflag: int, part: bytes, frame: int) -> list[bytes]:
        if cflag == FIRST:
            self._record_offset = self._carry.offset + frame
        self._parts.append(part)
        if cflag != LAST:
            return []
        record = self._joint.join(self._parts)
        self._parts = []
        return [record]
