"""TFRecord files without TensorFlow: finding their records."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import CorruptRecordError
from data_sharding.formats.idx_file import idx_path, read_idx
from data_sharding.formats.record_format import RecordFormat, RecordIndex, Unpacked, cut_short, refuse_gzip, scan_file
from data_sharding.formats.tfrecord_framing import FOOTER, HEADER, length_crc, masked_crc, payload_crcs
from data_sharding.storage import ByteSource


@dataclass(frozen=True)
class TFRecordFormat(RecordFormat):
    """`RecordFormat` for uncompressed TFRecord files.

    Attributes:
        use_idx: take records from the .idx file beside each data file, where there is one, after checking it against
            the data's framing.
    """

    use_idx: bool = False
    name = "tfrecord"
    patterns = ("*.tfrecord", "*.tfrecords", "*.tfrecord*-?????-of-?????")
    header_bytes = HEADER.size

    def scan(self, path: str, source: ByteSource, check_data: bool) -> RecordIndex:
        """Only the 16 framing bytes of each record are touched, unless `check_data` asks for the payloads' CRCs."""
        beside = idx_path(path) if self.use_idx else None
        index = read_idx(beside, path, source) if beside else _walk(path, source)
        if check_data:
            return index._replace(damage=(*_damaged_payloads(path, source, index), *index.damage))
        return index

    def unpack(self, raw: list[bytes], crcs: NDArray[np.uint32] | None, check: bool) -> Unpacked:
        if check and crcs is not None:
            return Unpacked(raw, payload_crcs(raw) == crcs)
        return super().unpack(raw, crcs, check)


def scan(path: str | Path, check_data: bool = False) -> RecordIndex:
    """Find the records of one file: payload offsets int64[n], lengths int64[n], stored masked data CRCs uint32[n].

    Raises:
        MissingDataError: no such file, not a regular file, or an empty one.
        CorruptRecordError: a length CRC is wrong, the file ends inside a record, the file is gzip, or with
            `check_data` a payload's CRC is wrong. The first damaged record is the one named.
    """
    return scan_file(TFRecordFormat(), str(path), check_data)


def _walk(path: str, source: ByteSource) -> RecordIndex:
    offsets: list[int] = []
    lengths: list[int] = []
    crcs: list[int] = []
    damage: list[CorruptRecordError] = []
    frame, end = 0, source.size()
    while frame < end:
        if end - frame < HEADER.size:
            damage.append(
                cut_short(path, frame, len(offsets), f"the record needs more than the {end - frame} bytes left")
            )
            break
        length, stored = HEADER.unpack(source[frame : frame + HEADER.size])
        if stored != length_crc(length):
            if frame == 0:  # not looked at before: a sound length may begin so too
                refuse_gzip(path, source[0:2])
            damage.append(_bad_length(path, frame, len(offsets)))
            break
        payload = frame + HEADER.size
        after = payload + length
        if end - after < FOOTER.size:
            how = f"the record needs {length + HEADER.size + FOOTER.size} bytes but only {end - frame} are left"
            damage.append(cut_short(path, frame, len(offsets), how))
            break
        offsets.append(payload)
        lengths.append(length)
        crcs.append(FOOTER.unpack(source[after : after + FOOTER.size])[0])
        frame = after + FOOTER.size
    columns = np.array(offsets, np.int64), np.array(lengths, np.int64), np.array(crcs, np.uint32)
    return RecordIndex(*columns, damage=tuple(damage))


def _damaged_payloads(path: str, source: ByteSource, index: RecordIndex) -> list[CorruptRecordError]:
    offsets, lengths, crcs = index.offsets.tolist(), index.lengths.tolist(), index.crcs
    stored = [] if crcs is None else crcs.tolist()
    return [
        CorruptRecordError(
            f"Record {number} of {path}, at byte offset {offset - HEADER.size}, is damaged.",
            "Its data does not match its stored CRC.",
            path=path,
            offset=offset - HEADER.size,
        )
        for number, (offset, length, crc) in enumerate(zip(offsets, lengths, stored, strict=True))
        if masked_crc(source[offset : offset + length]) != crc
    ]


def _bad_length(path: str, frame: int, number: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"Record {number} of {path}, at byte offset {frame}, has a length that does not match its CRC.",
        "Without the length the rest of the file cannot be read.",
        "restore the file from its source." if number else "check that it is an uncompressed TFRecord file.",
        path=path,
        offset=frame,
    )
