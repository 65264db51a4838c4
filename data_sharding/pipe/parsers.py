"""Parsers that split a stream of bytes into records; a record may continue in the next chunk."""

from typing import Final, Literal, Protocol

import numpy as np

from data_sharding.checks import one_of
from data_sharding.formats import recordio, tfrecord
from data_sharding.formats.record_format import GZIP_MAGIC, FrameError

Framing = Literal["tfrecord", "recordio", "recordio-sagemaker"]

_FOOTER_BYTES: Final = np.arange(tfrecord.FOOTER.size)


def parser_for(framing: Framing) -> "FrameParser":
    """A new parser: "tfrecord", "recordio" as dmlc and MXNet write it, or as SageMaker reads it. Raises PlanError."""
    one_of("framing", framing, Framing)
    if framing == "tfrecord":
        return TFRecordFrames()
    return RecordIOFrames("dmlc" if framing == "recordio" else "sagemaker")


class FrameParser(Protocol):
    """Sans-I/O parser of one stream."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The payloads of the records that `chunk` completes. Raises FrameError if framing or checksum is wrong."""

    def finish(self) -> None:
        """The stream has ended. Raises FrameError if it ended inside a record."""


class _Carry:
    """The bytes of a frame that is not whole yet. They are joined with later ones only once the frame can be whole."""

    def __init__(self, header_bytes: int) -> None:
        self._header_bytes = header_bytes
        self._parts: list[bytes] = []
        self._need = header_bytes
        self.size = 0
        self.offset = 0
        """Byte of the stream at which the carried ones begin."""

    def join(self, chunk: bytes) -> bytes | None:
        """All bytes read so far, or None while they are less than a whole frame."""
        self._parts.append(chunk)
        self.size += len(chunk)
        if self.size < self._need:
            return None
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def keep(self, data: bytes, start: int, need: int | None = None) -> None:
        """Carry `data[start:]`, a frame of `need` bytes (None: its header is not whole yet)."""
        rest = data[start:]
        self._parts = [rest] if rest else []
        self._need = self._header_bytes if need is None else need
        self.size = len(rest)
        self.offset += start


class TFRecordFrames:
    """A `FrameParser`. The checksums of all records of a chunk are compared at once."""

    def __init__(self) -> None:
        self._carry = _Carry(tfrecord.HEADER.size)

    def feed(self, chunk: bytes) -> list[bytes]:
        data = self._carry.join(chunk)
        if data is None:
            return []
        payloads: list[bytes] = []
        footers: list[int] = []
        head, foot = tfrecord.HEADER.size, tfrecord.FOOTER.size
        frame, need, end = 0, None, len(data)
        while end - frame >= head:
            length, stored = tfrecord.HEADER.unpack_from(data, frame)
            if stored != tfrecord.length_crc(length):
                self._check_payloads(data, payloads, footers)
                raise self._bad_length(data, frame)
            footer = frame + head + length
            if end - footer < foot:
                need = head + length + foot
                break
            payloads.append(data[frame + head : footer])
            footers.append(footer)
            frame = footer + foot
        self._check_payloads(data, payloads, footers)
        self._carry.keep(data, frame, need)
        return payloads

    def finish(self) -> None:
        if self._carry.size:
            raise FrameError(f"it ends {self._carry.size} bytes into a record", self._carry.offset)

    def _check_payloads(self, data: bytes, payloads: list[bytes], footers: list[int]) -> None:
        if not payloads:
            return
        stored = np.frombuffer(data, np.uint8)[np.array(footers)[:, None] + _FOOTER_BYTES].view("<u4").reshape(-1)
        bad = np.flatnonzero(tfrecord.payload_crcs(payloads) != stored)
        if len(bad):
            frame = footers[bad[0]] - len(payloads[bad[0]]) - tfrecord.HEADER.size
            raise FrameError("a record's data does not match its CRC", self._carry.offset + frame)

    def _bad_length(self, data: bytes, frame: int) -> FrameError:
        offset = self._carry.offset + frame
        if offset == 0 and data[:2] == GZIP_MAGIC:
            return FrameError("it is compressed with gzip, whose records cannot be told apart", 0)
        return FrameError("a record's length does not match its CRC", offset)


class RecordIOFrames:
    """A `FrameParser`. `multipart` says whether a record's parts are joined by the magic number ("dmlc") or not."""

    def __init__(self, multipart: recordio.Multipart = "dmlc") -> None:
        self._carry = _Carry(recordio.HEADER.size)
        self._joint = recordio.MAGIC_BYTES if multipart == "dmlc" else b""
        self._parts: list[bytes] = []
        self._record_offset = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        data = self._carry.join(chunk)
        if data is None:
            return []
        payloads: list[bytes] = []
        head, frame, need, end = recordio.HEADER.size, 0, None, len(data)
        while end - frame >= head:
            cflag, length = self._header(data, frame)
            after = frame + head + recordio.padded(length)
            if after > end:
                need = after - frame
                break
            part = data[frame + head : frame + head + length]
            if cflag == recordio.WHOLE:
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
        (magic, word), offset = recordio.HEADER.unpack_from(data, frame), self._carry.offset + frame
        if magic != recordio.MAGIC:
            raise FrameError(f"a record begins with {magic:#010x} instead of {recordio.MAGIC:#x}", offset)
        cflag, inside = word >> recordio.LENGTH_BITS, bool(self._parts)
        if cflag not in recordio.expected_flags(inside):
            where = "inside" if inside else "outside"
            raise FrameError(f"a part marked {cflag} stands {where} a record of several parts", offset)
        return cflag, word & recordio.LENGTH_MASK

    def _take_part(self, cflag: int, part: bytes, frame: int) -> list[bytes]:
        if cflag == recordio.FIRST:
            self._record_offset = self._carry.offset + frame
        self._parts.append(part)
        if cflag != recordio.LAST:
            return []
        record = self._joint.join(self._parts)
        self._parts = []
        return [record]
