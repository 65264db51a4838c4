"""Where the arrays of an .npz or .npy file are in it: their headers are read, their values are not.

An .npz file is a zip of .npy files. Formats: numpy's `numpy.lib.format` docstring, and PKWARE's APPNOTE 4.3.7 for the
local header that precedes each member of a zip.
"""

import ast
import math
import struct
import zipfile
import zlib
from typing import Any, Final, NamedTuple

import numpy as np

from data_sharding.errors import CorruptRecordError
from data_sharding.storage import ByteSource

_MAGIC: Final = b"\x93NUMPY"
_ZIP_MAGIC: Final = b"PK"
_LONGEST_HEADER: Final = 1 << 16
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")
_ENCRYPTED: Final = 1
_PIECE: Final = 1 << 22


class Member(NamedTuple):
    """An array in a file."""

    name: str  # without ".npy"; empty for the array of an .npy file
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    begin: int  # byte of the file at which its values begin
    # begin and end of the .npy file in the zip, and the zip's CRC-32 for it; None in an .npy file
    whole: tuple[int, int, int] | None
    compressed: bool = False  # it is compressed, and all but name and CRC is unknown

    @property
    def rows(self) -> int:
        """Length of the first dimension; 0 for a scalar."""
        return self.shape[0] if self.shape else 0

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def row_type(self) -> str:
        """Name, dtype and shape of a row, for people."""
        return f"{self.name or 'the array'} {self.dtype}{list(self.shape[1:])}"

    def __str__(self) -> str:
        if self.compressed:
            return f"{self.name} (compressed)"
        return f"{self.name} {self.dtype}{list(self.shape)}".lstrip()


def find_members(path: str, source: ByteSource) -> list[Member]:
    """All arrays of a file. Raises CorruptRecordError (it is neither kind of file, or one that is damaged)."""
    if source[0:2] == _ZIP_MAGIC:
        return _zipped(path, source)
    return [_read_header(path, source, "", 0, source.size(), None)]


def damaged_member(source: ByteSource, member: Member) -> bool:
    """Whether an array of an .npz does not match the zip's CRC-32 for it. Reads all of it."""
    if member.whole is None:
        return False
    begin, end, stored = member.whole
    crc = 0
    for at in range(begin, end, _PIECE):
        crc = zlib.crc32(source[at : min(at + _PIECE, end)], crc)
    return crc != stored


def _zipped(path: str, source: ByteSource) -> list[Member]:
    with source.file() as file:
        try:
            with zipfile.ZipFile(file) as archive:
                infos = archive.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error, OSError) as error:
            # What zipfile raises for a damaged directory, found by trying.
            raise unusable(path, 0, f"is a damaged zip file ({type(error).__name__}: {error})") from error
    return [_zip_member(path, source, info) for info in infos if info.filename.endswith(".npy")]


def _zip_member(path: str, source: ByteSource, info: zipfile.ZipInfo) -> Member:
    name, at = info.filename.removesuffix(".npy"), info.header_offset
    if info.flag_bits & _ENCRYPTED:
        raise unusable(path, at, f"keeps {name!r} encrypted")
    if info.compress_type != zipfile.ZIP_STORED:
        return Member(name, np.dtype(np.void), (), False, 0, None, compressed=True)
    header = source[at : at + _LOCAL_HEADER.size] if at >= 0 else b""
    if len(header) < _LOCAL_HEADER.size or header[:4] != b"PK\x03\x04":
        raise unusable(path, at, f"has no member {name!r} where its directory says so")
    _, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
    begin = at + _LOCAL_HEADER.size + name_bytes + extra_bytes
    end = begin + info.file_size
    if info.file_size != info.compress_size or end > source.size():
        raise unusable(path, at, f"ends inside its member {name!r}")
    return _read_header(path, source, name, begin, end, info.CRC)


def _read_header(path: str, source: ByteSource, name: str, begin: int, end: int, crc: int | None) -> Member:
    start = source[begin : min(begin + 12, end)]
    if len(start) < 10 or start[:6] != _MAGIC or start[6] not in (1, 2, 3):
        raise unusable(path, begin, "has no array in numpy's format where one was expected")
    prefix = struct.Struct("<H" if start[6] == 1 else "<I")
    if len(start) < 8 + prefix.size:
        raise unusable(path, begin, "ends inside an array's header")
    (length,) = prefix.unpack_from(start, 8)
    values = begin + 8 + prefix.size + length
    if length > _LONGEST_HEADER or values > end:
        raise unusable(path, begin, f"has an array's header that announces {length} bytes")
    text = source[begin + 8 + prefix.size : values].decode("utf-8" if start[6] == 3 else "latin-1", "replace")
    try:
        dtype, shape, fortran_order = _parse(text)
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError, IndexError, Warning) as error:
        raise unusable(path, begin, "has an array's header that cannot be read") from error
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize != end - values:
        raise unusable(path, values, f"announces {dtype}{list(shape)} and has {end - values} bytes of it")
    return Member(name, dtype, shape, fortran_order, values, None if crc is None else (begin, end, crc))


def _parse(text: str) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    header = ast.literal_eval(text)
    shape, fortran_order = header["shape"], header["fortran_order"]
    if not isinstance(shape, tuple) or not all(type(length) is int and 0 <= length < 1 << 62 for length in shape):
        raise ValueError("the shape is not a tuple of lengths")
    if type(fortran_order) is not bool:
        raise ValueError("the order is not a boolean")
    return np.lib.format.descr_to_dtype(header["descr"]), shape, fortran_order


def unusable(path: str, offset: int, reason: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"{path} {reason}, at byte offset {offset}.",
        "The arrays in it cannot be read.",
        "restore the file from its source, or write it again with numpy.savez or numpy.save.",
        path=path,
        offset=offset,
    )
