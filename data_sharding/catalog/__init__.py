"""The catalog: where every record of a data set is, and the check that it has not changed since it was indexed."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from data_sharding.catalog import published_index
from data_sharding.catalog.catalog_file import COLUMNS, StoredCatalog, columns_of, read, unusable, write
from data_sharding.catalog.drawn import Drawn
from data_sharding.draws.draw_rule import DrawRule
from data_sharding.errors import CorruptRecordError, MissingDataError, ShardingError
from data_sharding.formats.record_format import RecordFormat, RecordIndex
from data_sharding.formats.registry import choose_format
from data_sharding.objects.collate import Names
from data_sharding.objects.object_columns import numbers_of
from data_sharding.objects.object_format import ObjectFormat
from data_sharding.objects.padding import Padding
from data_sharding.reading.record_table import Damage, OnCorrupt
from data_sharding.storage import FileEntry, is_remote, locate_file, verify_read, verify_unchanged
from data_sharding.storage.byte_source import for_files
from data_sharding.storage.file_cache import FileCache
from data_sharding.storage.input_files import Paths, find_files
from data_sharding.storage.torn_maps import watching_maps

_SCAN_THREADS: Final = 16


class Catalog(Drawn):
    """All records of a data set; its attributes are those of `RecordTable`."""

    @classmethod
    def index(
        cls,
        paths: Paths,
        check_data: bool = False,
        *,
        format: RecordFormat | str | None = None,  # noqa: A002  the word that users know
        on_corrupt: OnCorrupt = "raise",
        cache: FileCache | None = None,
        publish: bool = False,
    ) -> Self:
        """Scan data files: a file, a folder, a glob, a URL that fsspec reads, or a sequence of these.

        Record ids follow the order of the arguments, within each the sorted paths, within a file the file.

        Args:
            check_data: also compute every payload's checksum, which reads all data once.
            format: how records are kept; default: what the names suggest.
            on_corrupt: "raise", or go on with the records that can be framed and note the rest in `damage`: also files
                that are empty, of another format, or links to nothing.
            cache: keeps the remote files that a scan reads in full, as far as there is room.
            publish: also write an index into the deepest folder that holds all the files, from which `published` makes
                the catalog later. One that is there keeps what it says of other files.

        Raises:
            MissingDataError: a path does not exist, matches no file, or holds no record; or a file is empty, or a link
                to nothing, and `on_corrupt` is "raise".
            CorruptRecordError: a file is of another format, or damaged, and `on_corrupt` is "raise"; or no record can
                be used.
            ChangedDataError: a file changed while it was scanned.
            PlanError: two paths lead to the same file; no such format; files hold unlike records, or labels in some;
                or an index was to be published of damaged files, or of some that no folder holds.
            CatalogError: an index cannot be published.
        """
        chosen = choose_format(format, paths)
        if publish:
            published_index.require_publishable(chosen)
        listed: dict[str, FileEntry] = {}
        names = find_files(paths, chosen.patterns, chosen.recursive, listed)
        scanned = _scan_all(names, listed, chosen, check_data, on_corrupt, cache)
        damage = tuple(error for _, index in scanned for error in index.damage)
        if damage and (on_corrupt == "raise" or not any(len(index.offsets) for _, index in scanned)):
            raise damage[0]
        columns = columns_of(chosen, scanned)
        noted = tuple(Damage(error.path, error.offset, f"{error.fact} {error.conflict}") for error in damage)
        catalog = cls._checked(chosen, tuple(entry for entry, _ in scanned), columns, noted)
        if publish:
            published_index.publish(StoredCatalog(chosen, catalog.files, columns, noted, catalog.fingerprint))
        return catalog

    @classmethod
    def published(cls, paths: Paths, *, format: RecordFormat | str | None = None) -> Self | None:  # noqa: A002
        """The catalog of these files as an index beside them describes it; None: there is none, or not of all of them.

        The files are not read. They must have the sizes that the index says, and where it was published for this folder
        also the versions. Arguments and errors as `index`, and CatalogError: the index is damaged, or of other data.
        """
        chosen = choose_format(format, paths)
        listed: dict[str, FileEntry] = {}
        return cls.from_published(chosen, find_files(paths, chosen.patterns, chosen.recursive, listed), listed)

    @classmethod
    def from_published(cls, chosen: RecordFormat, names: Sequence[str], listed: Mapping[str, FileEntry]) -> Self | None:
        """As `published`, of files that were found, some of which are described already."""
        stored = published_index.find(names, listed, chosen)
        return None if stored is None else cls._checked(chosen, stored.files, stored.columns, ())

    @classmethod
    def of(
        cls,
        dataset: Any,
        *,
        names: Names = None,
        labels: Any = None,
        version: str | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pad: Mapping[str, float] | None = None,
        pad_to: Sequence[int] = (),
        lengths: Any = None,
        draws: bool | None = None,
    ) -> Self:
        """The items of an object: a map-style Dataset of torch, a Dataset of Hugging Face, a dict of arrays, a table of
        pandas, polars or pyarrow, or any sequence.

        What a plan and its audit prove is that each number from 0 to the length is used as planned. That the object has
        the same items in another process, or after a restart, is known as far as the fingerprint shows it: that is the
        object's own (Hugging Face), or made of its class, its length, and its first, middle and last item.

        Args:
            names: of the parts of items that are tuples, or of an item that is one array.
            labels: int64[N], or the name of an attribute or column of the object with these; None: there are none.
            version: takes the place of what the fingerprint is made of besides length and labels.
            collate_fn: as torch's `DataLoader` has it; None: parts are stacked.
            pad: parts of items that differ in length, and what each is filled up with at its end: a batch is as long as
                the longest item that any rank has in the step.
            pad_to: lengths to one of which batches are padded, for frameworks that compile a step for each.
            lengths: int64[N], or the name of an attribute or column with these, for `pad` and `shuffle="length"`; None:
                with `pad` every item is made once, to measure it, and without it all are taken for equal.
            draws: whether making an item or a batch takes numbers from random, numpy.random or torch, which are seeded
                then before each; None: looks whether the first item, the last, or a batch of both does.

        Raises:
            MissingDataError: the object is empty.
            PlanError: it has no length or no items by number; labels or lengths are not of its length; or an item is
                longer than `pad_to`.
        """
        kind = ObjectFormat.of(dataset, names, collate_fn, Padding.of(pad, pad_to), draws)
        if not kind.length:
            fact = f"The {kind.kind} has no item."
            raise MissingDataError(fact, "There is nothing to read.", "give an object that has some.")
        identity = version if version is not None else kind.identity()[:16]
        columns: dict[str, Any] = {
            "file_ids": np.zeros(kind.length, np.int32),
            "offsets": np.arange(kind.length),
            "lengths": kind.lengths(numbers_of(dataset, "lengths", lengths, kind.length)),
            "crcs": None,
            "labels": numbers_of(dataset, "labels", labels, kind.length),
            "row_groups": None,
        }
        file = FileEntry(f"{kind.kind} ({identity})", kind.length, identity)
        return cls._checked(kind, (file,), columns, ())

    @classmethod
    def _checked(
        cls,
        kind: RecordFormat,
        files: tuple[FileEntry, ...],
        columns: dict[str, Any],
        damage: tuple[Damage, ...],
        draws: DrawRule | None = None,
    ) -> Self:
        for column in columns.values():
            if column is not None:
                column.setflags(write=False)
        fingerprint = _fingerprint(kind, files, columns)
        if draws is not None:
            fingerprint = _fingerprint_of_draws(fingerprint, draws)
        return cls(kind, files, **columns, fingerprint=fingerprint, damage=damage, draws=draws)

    def save(self, path: str | Path) -> None:
        """Write the catalog to an .npz file, whole or not at all. Nothing in it is pickled."""
        columns = {name: getattr(self, name) for name in COLUMNS}
        more = (self.damage, self.fingerprint, self.draws, self.source_files, self.lost_bytes)
        write(path, StoredCatalog(self.format, self.files, columns, *more))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a saved catalog and check it against its own fingerprint; the data files are not touched.

        Raises:
            MissingDataError: there is no such file.
            CatalogError: the file is damaged, or is not a catalog of this version.
        """
        stored = read(path)
        catalog = cls._checked(stored.format, stored.files, stored.columns, stored.damage, stored.draws)
        if catalog.fingerprint != stored.fingerprint:
            raise unusable(path, "its content does not match its fingerprint")
        vars(catalog).update(source_files=stored.source_files)
        if stored.lost_bytes is not None:  # which some of the records don't tell
            vars(catalog).update(lost_bytes=stored.lost_bytes)
        return catalog


def _scan_all(
    names: Sequence[str],
    listed: Mapping[str, FileEntry],
    record_format: RecordFormat,
    check_data: bool,
    on_corrupt: OnCorrupt,
    cache: FileCache | None,
) -> list[tuple[FileEntry, RecordIndex]]:
    """Every file's index, in order. Remote files are scanned at the same time: they wait for the network."""
    if not (record_format.scans_content or check_data):
        cache = None

    def scan(name: str) -> tuple[FileEntry, RecordIndex]:
        entry = listed.get(name) or locate_file(name)
        if not entry.size:
            error = entry.no_content()
            if on_corrupt == "raise":
                raise error
            lost = CorruptRecordError(error.fact, error.conflict, error.hint, path=name)
            return entry, RecordIndex.of_nothing(lost)
        try:
            with watching_maps:
                index = None if check_data else record_format.scan_beside(entry)
                if index is None:
                    index = _scan_copy(
                        entry, lambda source: record_format.scan(name, record_format.open(source), check_data), cache
                    )
        except ShardingError as error:
            verify_unchanged(entry)
            if on_corrupt == "raise" or not isinstance(error, CorruptRecordError):
                raise
            index = RecordIndex.of_nothing(error)
        verify_read(entry)
        return entry, index

    return for_files(scan, names, _SCAN_THREADS if any(map(is_remote, names)) else 1)


def _scan_copy(entry: FileEntry, scan: Callable[[FileEntry], RecordIndex], cache: FileCache | None) -> RecordIndex:
    """A file's index, by its copy if there can be one; a copy that is damaged is made again once."""
    copy = None if cache is None or not is_remote(entry.path) else cache.fetch(entry)
    if cache is None or copy is None:
        return scan(entry)
    try:
        index = scan(copy)
        if not index.damage or not cache.forget_damaged(entry):
            return index
    except ShardingError:
        if not cache.forget_damaged(entry):
            raise
    return scan(cache.fetch(entry) or entry)


def _fingerprint(kind: RecordFormat, files: Sequence[FileEntry], columns: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(b"data_sharding.catalog/1")
    for number, file in enumerate(files):
        # An object is in no folder: a slash belongs to its version.
        name = os.fsencode(os.path.basename(file.path) if kind.of_file(number).is_stored else file.path)
        digest.update(b"%d %d " % (len(name), file.size) + name)
    # How a file divides its rows into groups is not what the data is.
    for column in (columns.get(name) for name in COLUMNS if name != "row_groups"):
        if column is not None:
            digest.update(column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes())
    return digest.hexdigest()


def _fingerprint_of_draws(records: str, draws: DrawRule) -> str:
    digest = hashlib.sha256(f"data_sharding.draws/1 {records} {json.dumps(draws.describe())}".encode())
    if draws.weights is not None:
        digest.update(draws.weights.astype("<i8", copy=False).tobytes())
    return digest.hexdigest()
