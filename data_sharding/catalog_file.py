"""A catalog on disk: an .npz of its arrays plus a JSON manifest; never pickle."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.atomic import atomic_file
from data_sharding.errors import CatalogError, MissingDataError
from data_sharding.file_entry import FileEntry
from data_sharding.record_format import RecordFormat

VERSION: Final = 1
COLUMNS: Final = {"file_ids": np.int32, "offsets": np.int64, "lengths": np.int64, "crcs": np.uint32}


class StoredCatalog(NamedTuple):
    """What a file holds: the data files, the arrays of `COLUMNS` by name, and the fingerprint it was saved with."""

    files: tuple[FileEntry, ...]
    columns: dict[str, NDArray[Any]]
    fingerprint: str


def write(
    path: str | Path,
    format_name: str,
    fingerprint: str,
    files: Sequence[FileEntry],
    columns: Mapping[str, Any],
) -> None:
    """Write all of it under the name `path`, or nothing."""
    manifest = {
        "version": VERSION,
        "format": format_name,
        "fingerprint": fingerprint,
        "files": [dataclasses.astuple(file) for file in files],
    }
    members: dict[str, Any] = {"manifest": np.frombuffer(json.dumps(manifest).encode(), np.uint8), **columns}
    with atomic_file(path) as file:
        np.savez(file, **members)


def read(path: str | Path, record_format: RecordFormat) -> StoredCatalog:
    """Read and check what `write` wrote, for data of `record_format`.

    Raises:
        MissingDataError: the file cannot be opened.
        CatalogError: it is damaged, or of another version or format.
    """
    try:
        manifest, columns = _load(Path(path))
        files = tuple(FileEntry(str(name), int(size), int(mtime)) for name, size, mtime in manifest["files"])
        stored = StoredCatalog(files, columns, str(manifest["fingerprint"]))
        written_as = (manifest["version"], manifest["format"])
    except OSError as error:
        raise MissingDataError(
            f"The catalog {path} cannot be opened: {error.strerror}.", "Its records are unknown.", "index the data."
        ) from error
    except Exception as error:
        # A damaged zip, .npy header or JSON surfaces as any of a dozen exception types of three libraries.
        raise damaged(path, f"{type(error).__name__}: {error}") from error
    if written_as != (VERSION, record_format.name):
        raise damaged(path, f"it was written as version and format {written_as}")
    _check_columns(path, stored, record_format)
    return stored


def damaged(path: str | Path, reason: str) -> CatalogError:
    """The error for a catalog that cannot be used."""
    return CatalogError(
        f"The catalog {path} cannot be used: {reason}.", "It names no records reliably.", "index again."
    )


def _load(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    with zipfile.ZipFile(path) as archive:
        # The zip's CRCs are checked before numpy believes any header inside.
        if (broken := archive.testzip()) is not None:
            raise zipfile.BadZipFile(f"bad CRC in {broken}")
    with np.load(path, allow_pickle=False) as members:
        return json.loads(members["manifest"].tobytes()), {name: members[name] for name in COLUMNS}


def _check_columns(path: str | Path, stored: StoredCatalog, record_format: RecordFormat) -> None:
    columns, rows = stored.columns, stored.columns["offsets"].shape
    if any(columns[name].dtype != dtype or columns[name].shape != rows for name, dtype in COLUMNS.items()):
        raise damaged(path, "its columns differ in length or type")
    file_ids, offsets, lengths = columns["file_ids"], columns["offsets"], columns["lengths"]
    if len(rows) != 1 or not rows[0] or file_ids.min() < 0 or file_ids.max() >= len(stored.files):
        raise damaged(path, "it names files that it does not list")
    sizes = np.array([file.size for file in stored.files], np.int64)
    room = sizes[file_ids] - record_format.footer_bytes - lengths
    if (offsets < record_format.header_bytes).any() or (lengths < 0).any() or (offsets > room).any():
        raise damaged(path, "it places records outside their files")
