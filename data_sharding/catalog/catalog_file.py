"""A catalog's columns: from the indexes of its files, and on disk as an .npz with a JSON manifest; never pickle."""

import dataclasses
import errno
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from data_sharding.atomic import atomic_file, final_path
from data_sharding.draws.draw_rule import DrawRule
from data_sharding.draws.saved_rules import rule_from
from data_sharding.errors import CatalogError, MissingDataError, PlanError
from data_sharding.formats.record_format import RecordFormat, RecordIndex
from data_sharding.formats.registry import format_named, format_options
from data_sharding.formats.tables import TableFormat
from data_sharding.reading.record_table import Damage
from data_sharding.storage import FileEntry
from data_sharding.storage.redaction import redacted

T = TypeVar("T", bound=np.generic)

VERSION: Final = 2
COLUMNS: Final = {
    **{"file_ids": np.int32, "offsets": np.int64, "lengths": np.int64},
    **{"crcs": np.uint32, "labels": np.int64, "row_groups": np.int32},
}
_OPTIONAL: Final = ("crcs", "labels", "row_groups")
_WEIGHTS: Final = "draw_weights"


class StoredCatalog(NamedTuple):
    """What a file holds; `columns` are the arrays of `COLUMNS` by name, None for one that the format does not have."""

    format: RecordFormat
    files: tuple[FileEntry, ...]
    columns: dict[str, Any]
    damage: tuple[Damage, ...]
    fingerprint: str
    draws: DrawRule | None = None
    source_files: tuple[int, ...] = ()
    lost_bytes: int | None = None  # None: as the records tell it


def write(path: str | Path, catalog: StoredCatalog) -> None:
    """Write all of it under the name `path`, or nothing."""
    manifest = {
        "version": VERSION,
        "format": catalog.format.name,
        "options": format_options(catalog.format),
        "fingerprint": catalog.fingerprint,
        "files": [dataclasses.astuple(file) for file in catalog.files],
        "damage": catalog.damage,
        "source_files": catalog.source_files,
        "lost_bytes": catalog.lost_bytes,
    }
    members: dict[str, Any] = {name: column for name, column in catalog.columns.items() if column is not None}
    if catalog.draws is not None:
        manifest["draws"] = catalog.draws.describe()
        members |= {} if catalog.draws.weights is None else {_WEIGHTS: catalog.draws.weights}
    with atomic_file(path) as file:
        np.savez(file, manifest=np.frombuffer(json.dumps(manifest).encode(), np.uint8), **members)


def read(path: str | Path) -> StoredCatalog:
    """Read and check what `write` wrote. Raises MissingDataError or CatalogError."""
    try:
        manifest, columns, weights = _load(final_path(path))
        if manifest["version"] != VERSION:
            raise ValueError(f"it was written as version {manifest['version']}, this is version {VERSION}")
        stored = StoredCatalog(
            format_named(manifest["format"], manifest["options"]),
            tuple(FileEntry(str(name), int(size), str(version)) for name, size, version in manifest["files"]),
            columns,
            tuple(Damage(str(name), int(offset), str(reason)) for name, offset, reason in manifest["damage"]),
            str(manifest["fingerprint"]),
            rule_from(manifest["draws"], weights) if "draws" in manifest else None,
            tuple(map(int, manifest.get("source_files", ()))),
            None if manifest.get("lost_bytes") is None else int(manifest["lost_bytes"]),
        )
    except OSError as error:
        fact = f"The catalog {path} cannot be opened: {error.strerror}."
        raise MissingDataError(fact, "Its records are unknown.", "index the data.") from error
    except Exception as error:
        # A damaged zip, .npy header or JSON surfaces as any of a dozen exception types of three libraries.
        raise unusable(path, f"{type(error).__name__}: {error}") from error
    check_columns(path, stored)
    return stored


def unusable(path: str | Path, reason: str) -> CatalogError:
    fact = f"The catalog {path} cannot be used: {reason}."
    return CatalogError(fact, "It names no records reliably.", "index again.")


def _load(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any] | None], NDArray[Any] | None]:
    """The manifest, the columns, and the weights by which records are drawn, if they have any."""
    with zipfile.ZipFile(path) as archive:
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise zipfile.BadZipFile("a member is compressed, and could expand to any size")
        # The zip's CRCs are checked before numpy believes any header inside.
        try:
            broken = archive.testzip()
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise zipfile.BadZipFile("a member begins before the file does") from error
        if broken is not None:
            raise zipfile.BadZipFile(f"bad CRC in {broken}")
    with np.load(path, allow_pickle=False) as members:
        columns = {name: members[name] for name in COLUMNS if name in members or name not in _OPTIONAL}
        manifest = json.loads(members["manifest"].tobytes())
        return manifest, {**dict.fromkeys(_OPTIONAL), **columns}, members.get(_WEIGHTS)


def check_columns(path: str | Path, stored: StoredCatalog) -> None:
    """Raise CatalogError unless the columns are of one length, of the right types, and name places in their files."""
    columns, rows = stored.columns, stored.columns["offsets"].shape
    present = {name: column for name, column in columns.items() if column is not None}
    if any(column.dtype != COLUMNS[name] or column.shape != rows for name, column in present.items()):
        raise unusable(path, "its columns differ in length or type")
    if isinstance(stored.format, TableFormat) and columns["row_groups"] is None:
        raise unusable(path, "it was written by a version that noted no groups of rows, and chose columns differently")
    file_ids, offsets, lengths = columns["file_ids"], columns["offsets"], columns["lengths"]
    if len(rows) != 1 or not rows[0] or file_ids.min() < 0 or file_ids.max() >= len(stored.files):
        raise unusable(path, "it names files that it does not list")
    sizes = np.array([file.size for file in stored.files], np.int64)
    last = sizes[file_ids] - lengths if stored.format.offset_unit == "byte" else offsets
    weights = None if stored.draws is None else stored.draws.weights
    if weights is not None and (weights.dtype != np.int64 or weights.shape != rows):
        raise unusable(path, "its weights are not one for each record")
    if (offsets < stored.format.header_bytes).any() or (lengths < 0).any() or (offsets > last).any():
        raise unusable(path, "it places records outside their files")


def columns_of(record_format: RecordFormat, scanned: Sequence[tuple[FileEntry, RecordIndex]]) -> dict[str, Any]:
    entries, indexes = [entry for entry, _ in scanned], [index for _, index in scanned]
    counts = [len(index.offsets) for index in indexes]
    if not any(counts):
        others = f", nor do {len(entries) - 1} more files" if len(entries) > 1 else ""
        fact = f"{redacted(entries[0].path)} holds no record{others}."
        raise MissingDataError(fact, "There is nothing to read.", "check the path, and how the files were written.")
    _check_alike(scanned)
    by_file = record_format.file_labels([entry.path for entry in entries])
    sound = [index for index in indexes if len(index.offsets)]
    return {
        "file_ids": np.repeat(np.arange(len(entries), dtype=np.int32), counts),
        "offsets": np.concatenate([index.offsets for index in indexes]),
        "lengths": np.concatenate([index.lengths for index in indexes]),
        "crcs": _joined([index.crcs for index in sound]),
        "labels": _joined([index.labels for index in sound]) if by_file is None else np.repeat(by_file, counts),
        "row_groups": _joined([index.row_groups for index in sound]),
    }


def _check_alike(scanned: Sequence[tuple[FileEntry, RecordIndex]]) -> None:
    kinds: dict[frozenset[str], str] = {}
    for entry, index in scanned:
        if len(index.offsets):
            labelled = {"labels"} if index.labels is not None and not index.layout else set()
            kinds.setdefault(index.layout | labelled, redacted(entry.path))
    if len(kinds) > 1:
        (first, path), (second, other) = list(kinds.items())[:2]
        mine, others = ", ".join(sorted(first - second)), ", ".join(sorted(second - first))
        if not mine:
            path, other, mine, others = other, path, others, mine
        raise PlanError(
            f"{path} has {mine}, and {other} has {others or 'not'}.",
            "The records of one data set are alike.",
            "name files that belong together, or choose by the format's options what all of them have.",
        )


def _joined(parts: list[NDArray[T] | None]) -> NDArray[T] | None:
    present = [part for part in parts if part is not None]
    return np.concatenate(present) if len(present) == len(parts) else None
