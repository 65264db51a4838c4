"""The index that others keep of a TFRecord file: a text file with one line `offset size` a record.

Offset and size, in bytes, are those of the whole frame: header, payload and checksums. NVIDIA DALI's `tfrecord2idx`
and the `tfrecord` package write such files and need them. Source: tools/tfrecord2idx in github.com/NVIDIA/DALI.
"""

import io
import os
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import CatalogError, MissingDataError
from data_sharding.formats.interface import RecordIndex
from data_sharding.formats.tfrecord_framing import FOOTER, HEADER, length_crc
from data_sharding.storage import ByteSource, is_remote

SUFFIX: Final = ".idx"

_AROUND: Final = HEADER.size + FOOTER.size
_HEADER: Final = np.dtype([("length", "<u8"), ("crc", "<u4")])
_SEAM: Final = np.dtype([("footer", "<u4"), ("length", "<u8"), ("crc", "<u4")])
"""Between two payloads: the end of one record's frame and the start of the next one's."""


def idx_path(data_path: str) -> str | None:
    """The index kept beside a local data file: `a.tfrecord.idx` or `a.idx`; None where there is none."""
    if is_remote(data_path):
        return None
    candidates = (data_path + SUFFIX, os.path.splitext(data_path)[0] + SUFFIX)
    return next((path for path in candidates if os.path.isfile(path)), None)


def read_idx(path: str | Path, data_path: str, source: ByteSource) -> RecordIndex:
    """The index of a TFRecord file: payload offsets int64[n], payload lengths int64[n], stored payload CRCs uint32[n].

    Every line is checked against the data: frames must cover the file without a gap, and every frame's length must be
    the one given and match its CRC. Payloads are not read.

    Args:
        data_path, source: the file that the index describes.

    Raises:
        MissingDataError: the index cannot be opened.
        CatalogError: it is no such index, or one of another file.
    """
    frames, sizes = _parse(path)
    ends = frames + sizes
    if not len(frames) or frames[0] != 0 or (frames[1:] != ends[:-1]).any() or ends[-1] != source.size():
        raise _other_file(path, data_path, "its records do not cover the file")
    if (sizes < _AROUND).any():
        raise _other_file(path, data_path, "a record in it is shorter than its frame")
    crcs = _checked_crcs(path, data_path, source, frames, sizes - _AROUND)
    return RecordIndex(frames + HEADER.size, sizes - _AROUND, crcs)


def _parse(path: str | Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise MissingDataError(
            f"{path} cannot be opened: {error.strerror}.", "The index cannot be read.", "check the path."
        ) from error
    if not text.strip():
        raise _no_index(path, "it is empty")
    try:
        numbers = np.loadtxt(io.BytesIO(text), np.int64, comments=None, ndmin=2)
    except (ValueError, OverflowError) as error:
        raise _no_index(path, str(error)) from error
    if numbers.shape[1] != 2 or (numbers < 0).any():
        raise _no_index(path, "not every line holds two numbers")
    return numbers[:, 0], numbers[:, 1]


def _checked_crcs(
    path: str | Path, data_path: str, source: ByteSource, frames: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """Compare headers with the index, and hand out the footers: both in one read, for they adjoin."""
    seams = frames[1:] - FOOTER.size
    end = int(frames[-1]) + HEADER.size + int(lengths[-1])
    first, *between, last = source.spans(
        [0, *seams.tolist(), end], [HEADER.size, *(seams + _SEAM.itemsize).tolist(), end + FOOTER.size]
    )
    head = np.frombuffer(first, _HEADER)
    inner = np.frombuffer(b"".join(between), _SEAM)
    if (np.concatenate([head["length"], inner["length"]]) != lengths.astype(np.uint64)).any():
        raise _other_file(path, data_path, "a record's length differs")
    distinct, which = np.unique(lengths, return_inverse=True)
    crcs = np.array([length_crc(length) for length in distinct.tolist()], np.uint32)[which]
    if (np.concatenate([head["crc"], inner["crc"]]) != crcs).any():
        raise _other_file(path, data_path, "a length in the data does not match its CRC")
    return np.concatenate([inner["footer"], np.frombuffer(last, "<u4")]).astype(np.uint32)


def _no_index(path: str | Path, reason: str) -> CatalogError:
    return CatalogError(
        f"{path} is not an index of a TFRecord file: {reason}.", "It names no records.", "write it again."
    )


def _other_file(path: str | Path, data_path: str, reason: str) -> CatalogError:
    return CatalogError(
        f"{path} does not describe {data_path}: {reason}.",
        "Its records would be read from wrong places.",
        "remove the index, or write it again.",
    )
