"""The bytes of an index that stands beside data files.

    data_sharding index 1\\n | sha256 of the rest | u32le length of the manifest | manifest, JSON | columns, zlib

A column is the bytes of its numbers, all first bytes, then all second ones: nearly equal numbers are then nearly
nothing. Offsets are stored as gaps behind the record before. The files are named relative to the folder, so that it can
be copied with its index; what a store calls their versions counts where the index was published only.
"""

import hashlib
import json
import posixpath
import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from data_sharding.catalog.catalog_file import COLUMNS, StoredCatalog, check_columns
from data_sharding.errors import CatalogError
from data_sharding.formats.registry import format_named, format_options
from data_sharding.storage import FileEntry, is_remote
from data_sharding.storage.redaction import redacted

MAGIC: Final = b"data_sharding index 1\n"
PUBLISH_AGAIN: Final = "publish it again with `hvdtrain shard index --publish SRC`, or remove it."
_LENGTH: Final = struct.Struct("<I")
_HEAD: Final = len(MAGIC) + 32 + _LENGTH.size


def packed(catalog: StoredCatalog, folder: str) -> bytes:
    """The index of files that are all in `folder`."""
    columns, counts = dict(catalog.columns), np.bincount(catalog.columns["file_ids"], minlength=len(catalog.files))
    columns["offsets"] = _gaps(columns)
    present = {name: column for name, column in columns.items() if column is not None and name != "file_ids"}
    blobs = {name: zlib.compress(_planes(column, COLUMNS[name])) for name, column in present.items()}
    manifest = {
        "format": catalog.format.name,
        "options": format_options(catalog.format),
        "folder": redacted(folder),
        "files": [
            [posixpath.relpath(file.path, folder) if not is_remote(folder) else file.path[len(folder) + 1 :]]
            + [file.size, file.version, int(count)]
            for file, count in zip(catalog.files, counts, strict=True)
        ],
        "columns": {name: len(blob) for name, blob in blobs.items()},
    }
    text = json.dumps(manifest).encode()
    rest = _LENGTH.pack(len(text)) + text + b"".join(blobs.values())
    return MAGIC + hashlib.sha256(rest).digest() + rest


def _gaps(columns: Mapping[str, Any]) -> NDArray[np.int64]:
    """How far behind the end of the record before it each record begins; the first of a file, behind byte 0."""
    ends = np.concatenate([[0], columns["offsets"] + columns["lengths"]])[:-1]
    ends[np.flatnonzero(np.diff(columns["file_ids"], prepend=-1))] = 0
    return np.asarray(columns["offsets"] - ends, np.int64)


def _offsets(file_ids: NDArray[np.int32], gaps: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    ends = np.cumsum(gaps + lengths)
    firsts = np.flatnonzero(np.diff(file_ids, prepend=-1))
    before = np.concatenate([[0], ends])[firsts]
    counts = np.diff(np.append(firsts, len(gaps)))
    return np.asarray(ends - lengths - np.repeat(before, counts), np.int64)


def _planes(column: NDArray[Any], kind: Any) -> bytes:
    little = column.astype(np.dtype(kind).newbyteorder("<"))
    return little.view(np.uint8).reshape(len(little), -1).T.tobytes()


def _column(blob: bytes, kind: Any, rows: int) -> NDArray[Any]:
    dtype = np.dtype(kind).newbyteorder("<")
    expected = rows * dtype.itemsize
    unpacking = zlib.decompressobj()
    planes = unpacking.decompress(blob, expected + 1)  # no more, whatever it claims
    if len(planes) != expected:
        raise ValueError("a column is not of its length")
    plane = np.frombuffer(planes, np.uint8).reshape(dtype.itemsize, rows)
    numbers: NDArray[Any] = np.ascontiguousarray(plane.T).view(dtype).reshape(rows).astype(kind)
    return numbers


def unpacked(path: str, content: bytes, folder: str) -> tuple[StoredCatalog, bool]:
    """The index at `path`, and whether it was published for `folder`. Raises CatalogError: it is damaged."""
    try:
        return _unpacked(path, content, folder)
    except CatalogError:
        raise
    except Exception as error:  # damaged JSON and zlib streams surface as any of several exceptions
        raise _damaged(path, f"{type(error).__name__}: {error}") from error


def _unpacked(path: str, content: bytes, folder: str) -> tuple[StoredCatalog, bool]:
    if hashlib.sha256(content[len(MAGIC) + 32 :]).digest() != content[len(MAGIC) : len(MAGIC) + 32]:
        raise _damaged(path, "its content does not match its checksum")
    (length,) = _LENGTH.unpack(content[_HEAD - _LENGTH.size : _HEAD])
    manifest = json.loads(content[_HEAD : _HEAD + length])
    files = tuple(FileEntry(f"{folder}/{name}", int(size), str(v)) for name, size, v, _ in manifest["files"])
    counts = np.array([count for *_, count in manifest["files"]], np.int64)
    columns: dict[str, Any] = dict.fromkeys(COLUMNS)
    at = _HEAD + length
    for name, size in manifest["columns"].items():
        columns[name] = _column(content[at : at + size], COLUMNS[name], int(counts.sum()))
        at += size
    columns["file_ids"] = np.repeat(np.arange(len(files), dtype=np.int32), counts)
    columns["offsets"] = _offsets(columns["file_ids"], columns["offsets"], columns["lengths"])
    stored = StoredCatalog(format_named(manifest["format"], manifest["options"]), files, columns, (), "")
    check_columns(path, stored)
    return stored, bool(manifest["folder"] == redacted(folder))


def _damaged(path: str, reason: str) -> CatalogError:
    fact = f"The published index {redacted(path)} cannot be used: {reason}."
    return CatalogError(fact, "It names no records reliably.", PUBLISH_AGAIN)
