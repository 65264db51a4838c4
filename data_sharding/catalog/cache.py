"""Catalogs that are kept from one run to the next, as long as their files have not changed."""

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import filelock
import numpy as np

from data_sharding.catalog import Catalog
from data_sharding.catalog.catalog_file import VERSION
from data_sharding.errors import CatalogError, ChangedDataError, MissingDataError
from data_sharding.formats.record_format import RecordFormat
from data_sharding.formats.registry import choose_format, format_options
from data_sharding.reading.record_table import OnCorrupt
from data_sharding.storage import FileEntry, is_remote, verify_unchanged
from data_sharding.storage.byte_source import for_files
from data_sharding.storage.file_cache import FileCache
from data_sharding.storage.input_files import Paths, find_files

_RULES: Final = 3
"""Raised when the same files are indexed in another way than before: then no kept catalog is of use."""

_VERIFY_THREADS: Final = 32

_log = logging.getLogger(__name__)


class _Wanted(NamedTuple):
    """What a catalog is to be: of these files, in this format, with or without every checksum computed."""

    paths: Paths
    files: list[str]
    listed: Mapping[str, FileEntry]
    format: RecordFormat
    check_data: bool
    on_corrupt: OnCorrupt
    file_cache: FileCache | None

    def scan(self) -> Catalog:
        if not self.check_data and (published := Catalog.from_published(self.format, self.files, self.listed)):
            return published
        return Catalog.index(
            self.paths,
            self.check_data,
            format=self.format,
            on_corrupt=self.on_corrupt,
            cache=self.file_cache,
        )


def open_catalog(
    paths: Paths,
    check_data: bool = False,
    *,
    format: RecordFormat | str | None = None,  # noqa: A002  as `Catalog.index`
    on_corrupt: OnCorrupt = "raise",
    cache_dir: str | Path | None = None,
    wait_s: float = 3600.0,
    file_cache: FileCache | None = None,
) -> Catalog:
    """The saved catalog of these paths if it is still true, else a new one, which is saved.

    True is a catalog that matches its own fingerprint and format, and lists the files that `paths` lead to now, each
    with its size and version. One made with `check_data` serves both kinds of requests. Of several processes on a host
    one scans, and the others wait for it. A place that cannot be written is logged, and the catalog returned unsaved.

    Args:
        paths, check_data, format, on_corrupt: as `Catalog.index`.
        cache_dir: folder to keep catalogs in; made if it is missing. None: they are not kept.
        wait_s: seconds to wait for another process that scans the same data.
        file_cache: as `cache` of `Catalog.index`.

    Raises:
        CatalogError: another process was still scanning after `wait_s`.
        ShardingError: as `Catalog.index`.
    """
    chosen = choose_format(format, paths)
    listed: dict[str, FileEntry] = {}
    files = find_files(paths, chosen.patterns, chosen.recursive, listed)
    wanted = _Wanted(paths, files, listed, chosen, check_data, on_corrupt, file_cache)
    if cache_dir is None or chosen.labels_beside:
        return wanted.scan()
    plain = Path(cache_dir, f"catalog-{_key(paths, chosen)}")
    checked = plain.with_name(f"{plain.name}-checked")
    return _kept(wanted, (checked,) if check_data else (checked, plain), wait_s)


def _kept(wanted: _Wanted, places: Sequence[Path], wait_s: float) -> Catalog:
    """The first true catalog of `places`, or a new one, put at the last of them."""
    if (kept := _first_true(wanted, places)) is not None:
        return kept
    place, catalog = places[-1], None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{place}.lock", timeout=wait_s):
            if (kept := _first_true(wanted, places)) is not None:  # made by another process while this one waited
                return kept
            catalog = wanted.scan()
            catalog.save(place)
    except filelock.Timeout as error:
        raise CatalogError(
            f"Another process has been indexing {wanted.files[0]} and its neighbours for {wait_s:g} s.",
            "Its catalog was waited for.",
            f"look for a process that hangs, or wait longer; the lock is {place}.lock.",
        ) from error
    except OSError as error:
        _log.warning("catalogs cannot be kept at %s: %s", place.parent, error)
    return wanted.scan() if catalog is None else catalog


def _first_true(wanted: _Wanted, places: Sequence[Path]) -> Catalog | None:
    """The first catalog of `places` that can be used; a log line says why another cannot."""
    for place in filter(Path.exists, places):
        try:
            catalog = Catalog.load(place)
            if catalog.format != wanted.format or [file.path for file in catalog.files] != wanted.files:
                raise ChangedDataError(f"{place} lists other files.", "Files were added or removed.", "index again.")
            _verify_all(catalog.files, wanted.listed)
            _verify_labels(catalog, place)
        except (CatalogError, ChangedDataError, MissingDataError) as error:
            _log.info("indexing again: %s", error.fact)
            continue
        if not catalog.damage or wanted.on_corrupt != "raise":  # with damage inside, the scan knows how to raise
            return catalog
    return None


def _verify_all(files: Sequence[FileEntry], listed: Mapping[str, FileEntry]) -> None:
    for file in files:
        if file.path in listed:
            file.verify_same(listed[file.path])
    others = [file for file in files if file.path not in listed]
    for_files(verify_unchanged, others, _VERIFY_THREADS if any(is_remote(file.path) for file in others) else 1)


def _verify_labels(catalog: Catalog, place: Path) -> None:
    """Where folders name classes: an empty one that was added or removed gives others other labels."""
    by_file = catalog.format.file_labels([file.path for file in catalog.files])
    kept = catalog.labels
    if by_file is not None and (kept is None or not np.array_equal(by_file[catalog.file_ids], kept)):
        raise ChangedDataError(f"{place} has other labels.", "Folders were added or removed.", "index again.")


def _key(paths: Paths, chosen: RecordFormat) -> str:
    """Names the request, not the files: when these change, the catalog is replaced."""
    named = [paths] if isinstance(paths, str | Path) else list(paths)
    absolute = [str(path) if is_remote(str(path)) else os.path.abspath(path) for path in named]
    request = [VERSION, _RULES, chosen.name, format_options(chosen), absolute]
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:16]
