"""TFRecord files.

A record is `u64le length | u32le masked crc32c(the 8 length bytes) | payload | u32le masked crc32c(payload)`; masking
is rotation by 15 bits plus a constant, so that a checksum of data that holds checksums stays strong. Source:
https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details and tensorflow/core/lib/hash/crc32c.h.

Others keep an index of such a file, a text file with one line `offset size` a record: those, in bytes, of the whole
frame. NVIDIA DALI's `tfrecord2idx` and the `tfrecord` package write such files and need them. Source:
tools/tfrecord2idx in github.com/NVIDIA/DALI.
"""

from __future__ import annotations

import functools
import io
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from data_sharding.atomic import atomic_file
from data_sharding.errors import CatalogError, CorruptRecordError, MissingDataError, PlanError
from data_sharding.formats.record_format import (
    RecordFormat,
    RecordIndex,
    Unpacked,
    cut_short,
    refuse_compressed,
    scan_file,
)
from data_sharding.storage import ByteSource, is_remote

if TYPE_CHECKING:
    from data_sharding.catalog import Catalog

HEADER: Final = struct.Struct("<QI")
FOOTER: Final = struct.Struct("<I")
_LENGTH: Final = struct.Struct("<Q")
_MASK_DELTA: Final = 0xA282EAD8

_IDX: Final = ".idx"
_AROUND: Final = HEADER.size + FOOTER.size
_HEADER: Final = np.dtype([("length", "<u8"), ("crc", "<u4")])
_SEAM: Final = np.dtype([("footer", "<u4"), ("length", "<u8"), ("crc", "<u4")])
"""Between two payloads: the end of one record's frame and the start of the next one's."""


def masked_crc(data: bytes) -> int:
    """CRC-32C of `data`, masked as TFRecord stores it."""
    crc = google_crc32c.value(data)
    return int(((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)


@functools.lru_cache(maxsize=65536)
def length_crc(length: int) -> int:
    """Masked CRC of a record's 8 length bytes; cached, because the records of a data set share few lengths."""
    return masked_crc(_LENGTH.pack(length))


def payload_crcs(payloads: Sequence[bytes]) -> NDArray[np.uint32]:
    """Masked CRCs of many payloads, uint32[len(payloads)]; the masking is vectorised."""
    crcs = np.fromiter(map(google_crc32c.value, payloads), np.uint32, len(payloads))
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(_MASK_DELTA)


@dataclass(frozen=True)
class TFRecordFormat(RecordFormat):
    """`RecordFormat` for uncompressed TFRecord files.

    With `use_idx`, records are taken from the .idx file beside a data file, after checking it against the framing.
    """

    use_idx: bool = False
    name = "tfrecord"
    patterns = ("*.tfrecord", "*.tfrecords", "*.tfrecord*-?????-of-?????")
    scans_content = True
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
    damage: tuple[CorruptRecordError, ...] = ()
    frame, end = 0, source.size()
    while frame < end:
        if end - frame < HEADER.size:
            if frame == 0:
                refuse_compressed(path, source[0:4])
            how = f"the record needs more than the {end - frame} bytes left"
            damage = (cut_short(path, frame, len(offsets), how),)
            break
        length, stored = HEADER.unpack(source[frame : frame + HEADER.size])
        if stored != length_crc(length):
            if frame == 0:  # not looked at before: a sound length may begin so too
                refuse_compressed(path, source[0:4])
            damage = (_bad_length(path, frame, len(offsets)),)
            break
        payload = frame + HEADER.size
        after = payload + length
        if end - after < FOOTER.size:
            how = f"the record needs {length + _AROUND} bytes but only {end - frame} are left"
            damage = (cut_short(path, frame, len(offsets), how),)
            break
        offsets.append(payload)
        lengths.append(length)
        crcs.append(FOOTER.unpack(source[after : after + FOOTER.size])[0])
        frame = after + FOOTER.size
    columns = np.array(offsets, np.int64), np.array(lengths, np.int64), np.array(crcs, np.uint32)
    return RecordIndex(*columns, damage=damage)


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


def idx_path(data_path: str) -> str | None:
    """The index kept beside a local data file: `a.tfrecord.idx` or `a.idx`; None where there is none."""
    if is_remote(data_path):
        return None
    candidates = (data_path + _IDX, os.path.splitext(data_path)[0] + _IDX)
    return next((path for path in candidates if os.path.isfile(path)), None)


def read_idx(path: str | Path, data_path: str, source: ByteSource) -> RecordIndex:
    """The records of a TFRecord file as the .idx file `path` lists them, with their stored CRCs.

    Every line is checked against the data: frames must cover the file without a gap, and every frame's length must be
    the one given and match its CRC. Payloads are not read.

    Raises:
        MissingDataError: the .idx file cannot be opened.
        CatalogError: it is not such a file, or one that describes another file.
    """
    frames, sizes = _read_lines(path)
    ends = frames + sizes
    if not len(frames) or frames[0] != 0 or (frames[1:] != ends[:-1]).any() or ends[-1] != source.size():
        raise _other_file(path, data_path, "its records do not cover the file")
    if (sizes < _AROUND).any():
        raise _other_file(path, data_path, "a record in it is shorter than its frame")
    lengths = sizes - _AROUND
    # Headers are compared and footers taken in one read, because they adjoin.
    seams = frames[1:] - FOOTER.size
    end = source.size() - FOOTER.size
    first, *between, last = source.spans(
        [0, *seams.tolist(), end], [HEADER.size, *(seams + _SEAM.itemsize).tolist(), source.size()]
    )
    head, inner = np.frombuffer(first, _HEADER), np.frombuffer(b"".join(between), _SEAM)
    if (np.concatenate([head["length"], inner["length"]]) != lengths.astype(np.uint64)).any():
        raise _other_file(path, data_path, "a record's length differs")
    distinct, which = np.unique(lengths, return_inverse=True)
    crcs = np.array([length_crc(length) for length in distinct.tolist()], np.uint32)[which]
    if (np.concatenate([head["crc"], inner["crc"]]) != crcs).any():
        raise _other_file(path, data_path, "a length in the data does not match its CRC")
    footers = np.concatenate([inner["footer"], np.frombuffer(last, "<u4")]).astype(np.uint32)
    return RecordIndex(frames + HEADER.size, lengths, footers)


def _read_lines(path: str | Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offset and size of each frame as an .idx file says, both int64[n]."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        fact = f"{path} cannot be opened: {error.strerror}."
        raise MissingDataError(fact, "The index cannot be read.", "check the path.") from error
    if not text.strip():
        raise _no_index(path, "it is empty")
    try:
        numbers = np.loadtxt(io.BytesIO(text), np.int64, comments=None, ndmin=2)
    except (ValueError, OverflowError) as error:
        raise _no_index(path, str(error)) from error
    if numbers.shape[1] != 2 or (numbers < 0).any():
        raise _no_index(path, "not every line holds two numbers")
    return numbers[:, 0], numbers[:, 1]


def write_idx(catalog: Catalog, folder: str | Path | None = None) -> list[Path]:
    """Write an index for each file of a TFRecord catalog, named as the file with `.idx` appended; return their paths.

    They are put beside the data files, or into `folder`, which is made if it is missing.

    Raises PlanError.
    """
    if catalog.format.name != "tfrecord":
        fact = f"The catalog is of format {catalog.format.name}."
        raise PlanError(fact, "Such an index exists for TFRecord files only.", "save the catalog itself.")
    paths = _targets(catalog, folder)
    ends = np.searchsorted(catalog.file_ids, np.arange(len(paths) + 1))
    for number, path in enumerate(paths):
        frames = catalog.offsets[ends[number] : ends[number + 1]] - HEADER.size
        sizes = catalog.lengths[ends[number] : ends[number + 1]] + _AROUND
        if (covered := int(sizes.sum())) != (file := catalog.files[number]).size:
            raise PlanError(
                f"The catalog knows {covered} of the {file.size} bytes of {file.path}.",
                "The file is damaged, and its index would hide that.",
                "restore the file, and index it again.",
            )
        lines = "".join(f"{frame} {size}\n" for frame, size in zip(frames.tolist(), sizes.tolist(), strict=True))
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as target:
            target.write(lines.encode())
    return paths


def _targets(catalog: Catalog, folder: str | Path | None) -> list[Path]:
    named: dict[Path, str] = {}
    for file in catalog.files:
        if folder is None and is_remote(file.path):
            raise PlanError(f"{file.path} is not on this machine.", "No index can be put beside it.", "name a folder.")
        beside = os.path.dirname(file.path) if folder is None else folder
        path = Path(beside) / (os.path.basename(file.path) + _IDX)
        if path in named:
            fact = f"{file.path} and {named[path]} have one name."
            conflict = f"Both indices would be {path}."
            raise PlanError(fact, conflict, "write them beside the files, or index the folders separately.")
        named[path] = file.path
    return list(named)


def _no_index(path: str | Path, reason: str) -> CatalogError:
    fact = f"{path} is not an index of a TFRecord file: {reason}."
    return CatalogError(fact, "It names no records.", "write it again.")


def _other_file(path: str | Path, data_path: str, reason: str) -> CatalogError:
    fact = f"{path} does not describe {data_path}: {reason}."
    return CatalogError(fact, "Its records would be read from wrong places.", "remove the index, or write it again.")
