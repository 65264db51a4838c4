"""Parsers that split a stream of bytes into records; a record may continue in the next chunk."""

from abc import ABC, abstractmethod
from typing import ClassVar, Final, Literal

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


class FrameParser(ABC):
    """Sans-I/O parser of one stream. A frame that is not whole yet is joined with later bytes once it can be whole."""

    header_bytes: ClassVar[int]

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._need = self.header_bytes
        self._size = 0
        self._offset = 0
        """Byte of the stream at which the bytes that are kept begin."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The payloads of the records that `chunk` completes. Raises FrameError if framing or checksum is wrong."""
        self._parts.append(chunk)
        self._size += len(chunk)
        if self._size < self._need:
            return []
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        payloads, rest, self._need = self._split(data)
        self._parts = [data[rest:]] if rest < len(data) else []
        self._size = len(data) - rest
        self._offset += rest
        return payloads

    @abstractmethod
    def _split(self, data: bytes) -> tuple[list[bytes], int, int]:
        """Payloads of the records that are whole, the place of the first frame that is not, and how long that will be.

        As long as a header, where that is not whole either.
        """

    @abstractmethod
    def finish(self) -> None:
        """The stream has ended. Raises FrameError if it ended inside a record."""


class TFRecordFrames(FrameParser):
    """The checksums of all records of a chunk are compared at once."""

    header_bytes = tfrecord.HEADER.size

    def _split(self, data: bytes) -> tuple[list[bytes], int, int]:
        payloads: list[bytes] = []
        footers: list[int] = []
        head, foot = tfrecord.HEADER.size, tfrecord.FOOTER.size
        frame, need, end = 0, head, len(data)
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
        return payloads, frame, need

    def finish(self) -> None:
        if self._size:
            raise FrameError(f"it ends {self._size} bytes into a record", self._offset)

    def _check_payloads(self, data: bytes, payloads: list[bytes], footers: list[int]) -> None:
        if not payloads:
            return
        stored = np.frombuffer(data, np.uint8)[np.array(footers)[:, None] + _FOOTER_BYTES].view("<u4").reshape(-1)
        bad = np.flatnonzero(tfrecord.payload_crcs(payloads) != stored)
        if len(bad):
            frame = footers[bad[0]] - len(payloads[bad[0]]) - tfrecord.HEADER.size
            raise FrameError("a record's data does not match its CRC", self._offset + frame)

    def _bad_length(self, data: bytes, frame: int) -> FrameError:
        offset = self._offset + frame
        if offset == 0 and data[:2] == GZIP_MAGIC:
            return FrameError("it is compressed with gzip, whose records cannot be told apart", 0)
        return FrameError("a record's length does not match its CRC", offset)


class RecordIOFrames(FrameParser):
    """`multipart` says whether a record's parts are joined by the magic number ("dmlc") or not."""

    header_bytes = recordio.HEADER.size

    def __init__(self, multipart: recordio.Multipart) -> None:
        super().__init__()
        self._joint = recordio.MAGIC_BYTES if multipart == "dmlc" else b""
        self._record: list[bytes] = []
        """Parts of the record that is not whole yet."""
        self._record_offset = 0

    def _split(self, data: bytes) -> tuple[list[bytes], int, int]:
        payloads: list[bytes] = []
        head, frame, end = recordio.HEADER.size, 0, len(data)
        need = head
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
        return payloads, frame, need

    def finish(self) -> None:
        if self._size:
            raise FrameError(f"it ends {self._size} bytes into a record's part", self._offset)
        if self._record:
            raise FrameError("it ends between two parts of a record", self._record_offset)

    def _header(self, data: bytes, frame: int) -> tuple[int, int]:
        (magic, word), offset = recordio.HEADER.unpack_from(data, frame), self._offset + frame
        if magic != recordio.MAGIC:
            raise FrameError(f"a record begins with {magic:#010x} instead of {recordio.MAGIC:#x}", offset)
        cflag, inside = word >> recordio.LENGTH_BITS, bool(self._record)
        if cflag not in recordio.expected_flags(inside):
            where = "inside" if inside else "outside"
            raise FrameError(f"a part marked {cflag} stands {where} a record of several parts", offset)
        return cflag, word & recordio.LENGTH_MASK

    def _take_part(self, cflag: int, part: bytes, frame: int) -> list[bytes]:
        if cflag == recordio.FIRST:
            self._record_offset = self._offset + frame
        self._record.append(part)
        if cflag != recordio.LAST:
            return []
        record = self._joint.join(self._record)
        self._record = []
        return [record]
