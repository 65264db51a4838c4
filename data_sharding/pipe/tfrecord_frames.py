"""TFRecord frames from a stream, both checksums verified."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from data_sharding.formats.tfrecord_framing import FOOTER, HEADER, length_crc, payload_crcs
from data_sharding.pipe.frames import Carry, FrameError

_GZIP_MAGIC: Final = b"\x1f\x8b"
_FOOTER_BYTES: Final = np.arange(FOOTER.size)


class TFRecordFrames:
    """A `FrameParser`. The checksums of all records of a chunk are compared at once."""

    def __init__(self) -> None:
        self._carry = Carry(HEADER.size)

    def feed(self, chunk: bytes) -> list[bytes]:
        data = self._carry.join(chunk)
        if data is None:
            return []
        payloads: list[bytes] = []
        footers: list[int] = []
        frame, need, end = 0, None, len(data)
        while end - frame >= HEADER.size:
            length, stored = HEADER.unpack_from(data, frame)
            if stored != length_crc(length):
                self._check_payloads(data, payloads, footers)
                raise self._bad_length(data, frame)
            footer = frame + HEADER.size + length
            if end - footer < FOOTER.size:
                need = HEADER.size + length + FOOTER.size
                break
            payloads.append(data[frame + HEADER.size : footer])
            footers.append(footer)
            frame = footer + FOOTER.size
        self._check_payloads(data, payloads, footers)
        self._carry.keep(data, frame, need)
        return payloads

    def finish(self) -> None:
        if self._carry.size:
            raise FrameError(f"it ends {self._carry.size} bytes into a record", self._carry.offset)

    def _check_payloads(self, data: bytes, payloads: list[bytes], footers: list[int]) -> None:
        if not payloads:
            return
        bad = np.flatnonzero(payload_crcs(payloads) != _stored(data, footers))
        if len(bad):
            frame = footers[bad[0]] - len(payloads[bad[0]]) - HEADER.size
            raise FrameError("a record's data does not match its CRC", self._carry.offset + frame)

    def _bad_length(self, data: bytes, frame: int) -> FrameError:
        offset = self._carry.offset + frame
        if offset == 0 and data[:2] == _GZIP_MAGIC:
            return FrameError("it is compressed with gzip, whose records cannot be told apart", 0)
        return FrameError("a record's length does not match its CRC", offset)


def _stored(data: bytes, footers: list[int]) -> NDArray[np.uint32]:
    """The CRCs at the given offsets, uint32[len(footers)]."""
    gathered = np.frombuffer(data, np.uint8)[np.array(footers)[:, None] + _FOOTER_BYTES]
    stored: NDArray[np.uint32] = gathered.view("<u4").reshape(-1)
    return stored
