"""TFRecord files without TensorFlow: finding their records, and (from `tfrecord_writer`) writing them."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import CorruptRecordError, MissingDataError
from data_sharding.record_format import RecordFormat, RecordIndex
from data_sharding.tfrecord_framing import FOOTER, HEADER, length_crc, masked_crc, payload_crcs
from data_sharding.tfrecord_writer import TFRecordWriter, write_shards

__all__ = ["TFRECORD", "TFRecordWriter", "scan", "write_shards"]

_GZIP_MAGIC: Final = b"\x1f\x8b"


def scan(path: str | Path, check_data: bool = False) -> RecordIndex:
    """Find the records of one file: (offsets int64[n], lengths int64[n], stored masked data CRCs uint32[n]).

    Only the 16 framing bytes of each record are touched, through a memory map, unless `check_data` asks for the
    payloads' CRCs to be computed as well.

    Raises:
        MissingDataError: no such file, not a regular file, or an empty one.
        CorruptRecordError: a length CRC is wrong, the file ends inside a record, the file is gzip, or with
            `check_data` a payload's CRC is wrong. The first damaged record is the one named.
    """
    path = os.fspath(path)
    _check_readable(path)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        index = _walk(path, view)
        if check_data:
            _check_payloads(path, view, index)
        return index


def _check_readable(path: str) -> None:
    try:
        status = os.stat(path)
    except OSError as error:
        raise MissingDataError(
            f"{path} cannot be opened: {error.strerror}.", "Its records cannot be read.", "check the path."
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise MissingDataError(
            f"{path} is not a regular file.", "Only files can be read at random.", "name files, folders or globs."
        )
    if status.st_size == 0:
        raise MissingDataError(
            f"{path} is empty.",
            "A data file without a record is most often one whose writing was cut short.",
            "write it again, or remove it.",
        )


def _walk(path: str, view: mmap.mmap) -> RecordIndex:
    offsets: list[int] = []
    lengths: list[int] = []
    crcs: list[int] = []
    frame, end = 0, len(view)
    while frame < end:
        if end - frame < HEADER.size:
            raise _truncated(path, frame, len(offsets), end - frame, HEADER.size)
        length, stored = HEADER.unpack_from(view, frame)
        if stored != length_crc(length):
            raise _bad_framing(path, frame, len(offsets), view[:2] == _GZIP_MAGIC and frame == 0)
        payload = frame + HEADER.size
        after = payload + length
        if end - after < FOOTER.size:
            raise _truncated(path, frame, len(offsets), end - frame, HEADER.size + length + FOOTER.size)
        offsets.append(payload)
        lengths.append(length)
        crcs.append(FOOTER.unpack_from(view, after)[0])
        frame = after + FOOTER.size
    return RecordIndex(np.array(offsets, np.int64), np.array(lengths, np.int64), np.array(crcs, np.uint32))


def _check_payloads(path: str, view: mmap.mmap, index: RecordIndex) -> None:
    for number, (offset, length, stored) in enumerate(zip(*(column.tolist() for column in index), strict=True)):
        if masked_crc(view[offset : offset + length]) != stored:
            raise CorruptRecordError(
                f"Record {number} of {path}, at byte offset {offset - HEADER.size}, is damaged.",
                "Its data does not match its stored CRC.",
                "restore the file from its source.",
                path=path,
                offset=offset - HEADER.size,
            )


def _truncated(path: str, frame: int, number: int, present: int, needed: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"{path} ends inside record {number}, which begins at byte offset {frame}.",
        f"The record needs {needed} bytes but only {present} are left: the file was cut short.",
        "restore the file from its source.",
        path=path,
        offset=frame,
    )


def _bad_framing(path: str, frame: int, number: int, gzip: bool) -> CorruptRecordError:
    if gzip:
        return CorruptRecordError(
            f"{path} is compressed with gzip, from byte offset 0 on.",
            "A gzip stream allows no random access, so its records cannot be indexed.",
            "decompress it first.",
            path=path,
            offset=0,
        )
    return CorruptRecordError(
        f"Record {number} of {path}, at byte offset {frame}, has a length that does not match its CRC.",
        "Without the length the rest of the file cannot be read.",
        "restore the file from its source." if number else "check that it is an uncompressed TFRecord file.",
        path=path,
        offset=frame,
    )


class _TFRecordFormat:
    """`RecordFormat` for uncompressed TFRecord files."""

    name = "tfrecord"
    suffixes = (".tfrecord", ".tfrecords")
    header_bytes = HEADER.size
    footer_bytes = FOOTER.size

    def scan(self, path: str, check_data: bool) -> RecordIndex:
        return scan(path, check_data)

    def checksums(self, payloads: Sequence[bytes]) -> NDArray[np.uint32]:
        return payload_crcs(payloads)


TFRECORD: Final[RecordFormat] = _TFRecordFormat()
