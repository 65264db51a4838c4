"""The index that stands beside data files, so that later jobs need not look into them.

It names files relative to its folder, so that both can be copied together; what a store calls the versions of files
counts where the index was published only.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from data_sharding.catalog.catalog_file import COLUMNS, StoredCatalog
from data_sharding.catalog.index_file import MAGIC, PUBLISH_AGAIN, packed, unpacked
from data_sharding.errors import CatalogError, PlanError
from data_sharding.formats.record_format import RecordFormat
from data_sharding.storage import FileEntry, is_remote, locate_file, write_file
from data_sharding.storage.byte_source import for_files
from data_sharding.storage.file_entry import INDEX_NAME
from data_sharding.storage.redaction import redacted
from data_sharding.storage.side_file import read_if_there

_LOCATE_THREADS: Final = 32

_log = logging.getLogger(__name__)


def require_publishable(record_format: RecordFormat) -> None:
    """Raise PlanError for a format whose files an index does not describe alone."""
    if record_format.labels_beside:
        raise PlanError(
            f"Files of {record_format.name} have their labels in files beside them.",
            "An index would not notice that these change.",
            "leave it out: such files are indexed quickly.",
        )


def publish(catalog: StoredCatalog) -> None:
    """Write the index of these files beside them. Raises PlanError or CatalogError."""
    if catalog.damage:
        fact = f"{catalog.damage[0].reason}"
        raise PlanError(fact, "An index of it would hide that.", "restore the file, and publish the index then.")
    path = place_of([file.path for file in catalog.files])
    if path is None:
        raise PlanError(
            f"No folder holds {redacted(catalog.files[0].path)} and the other files.",
            "An index stands beside the files that it describes.",
            "publish one for each folder.",
        )
    folder = path.rpartition("/")[0]
    earlier = _read(path, folder)
    write_file(path, packed(catalog if earlier is None else _joined(catalog, earlier[0]), folder))


def find(names: Sequence[str], listed: Mapping[str, FileEntry], record_format: RecordFormat) -> StoredCatalog | None:
    """What the index beside these files says of them, as they are now. None: there is no index, or none of them all.

    Args: `listed`: what is known of the files already.
    """
    place = None if record_format.labels_beside else place_of(names)
    read = None if place is None else _read(place, place.rpartition("/")[0])
    if place is None or read is None:
        return None
    index, is_at_home = read
    path = redacted(place)
    if index.format != record_format:
        _log.info("%s describes the files as %s, which was not asked for", path, index.format)
        return None
    number = {file.path: place for place, file in enumerate(index.files)}
    if absent := [name for name in names if name not in number]:
        _log.warning("%s does not know %s of %d files, which are all indexed again", path, len(absent), len(names))
        return None
    files = for_files(lambda name: listed.get(name) or locate_file(name), names, _LOCATE_THREADS)
    for file in files:
        _require_same(path, index.files[number[file.path]], file, is_at_home)
    return _selected(index, [number[name] for name in names], files)


def place_of(names: Sequence[str]) -> str | None:
    """Where the index of these files stands: in the deepest folder that holds them all.

    None: there is no such folder, or their URLs do not show it.
    """
    if any(is_remote(name) and ("?" in name or "://" in name.rpartition("::")[0]) for name in names):
        return None
    parts = [name.split("/")[:-1] for name in names]
    first, last = min(parts), max(parts)
    same = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    folder = "/".join(first[: min(same, len(last))])
    lone = is_remote(folder) and not folder.partition("://")[2]
    return None if lone or not folder or is_remote(folder) != is_remote(names[0]) else f"{folder}/{INDEX_NAME}"


def _require_same(index: str, then: FileEntry, now: FileEntry, is_at_home: bool) -> None:
    if then.size != now.size:
        how = f"it had {then.size:,} bytes, and has {now.size:,} now"
    elif is_at_home and then.version != now.version:
        how = "it was modified since then"
    else:
        return
    raise CatalogError(
        f"The published index {index} is of other data than {redacted(now.path)}: {how}.",
        "Records would be read from wrong places.",
        PUBLISH_AGAIN,
    )


def _selected(index: StoredCatalog, wanted: Sequence[int], files: Sequence[FileEntry]) -> StoredCatalog:
    """The rows of some files, in their order."""
    ends = np.searchsorted(index.columns["file_ids"], np.arange(len(index.files) + 1))
    counts = np.diff(ends)[wanted]
    rows = np.concatenate([np.arange(ends[file], ends[file + 1]) for file in wanted])
    columns = {name: None if column is None else column[rows] for name, column in index.columns.items()}
    columns["file_ids"] = np.repeat(np.arange(len(files), dtype=np.int32), counts)
    by_file = index.format.file_labels([file.path for file in files])
    if by_file is not None:
        columns["labels"] = np.repeat(by_file, counts)
    return StoredCatalog(index.format, tuple(files), columns, (), "")


def _joined(catalog: StoredCatalog, earlier: StoredCatalog) -> StoredCatalog:
    """The catalog, and what an index said of files that are not in it, if it was made in the same way."""
    there = {file.path for file in catalog.files}
    kept = [place for place, file in enumerate(earlier.files) if file.path not in there]
    present = [[name for name, column in c.columns.items() if column is not None] for c in (catalog, earlier)]
    if earlier.format != catalog.format or present[0] != present[1] or not kept:
        return catalog
    rest = _selected(earlier, kept, [earlier.files[place] for place in kept])
    rest.columns["file_ids"] += np.int32(len(catalog.files))
    columns = {name: np.concatenate([catalog.columns[name], rest.columns[name]]) for name in present[0]}
    return catalog._replace(files=(*catalog.files, *rest.files), columns={**dict.fromkeys(COLUMNS), **columns})


def _read(path: str, folder: str) -> tuple[StoredCatalog, bool] | None:
    """The index at `path`, and whether it was published for this folder; None: there is none. Raises CatalogError."""
    content = read_if_there(path)
    if content is None or not content.startswith(MAGIC):
        return None  # some servers answer whatever is asked
    return unpacked(path, content, folder)
