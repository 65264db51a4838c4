"""Rewrite a data set in another format or number of files.

`convert.targets` says what a record becomes. Records keep their order: file k of S gets the records from
N*k//S up to N*(k+1)//S of N, so that reading the new files one after another gives the old order, or with `shuffle` a
seeded permutation of it.

    index     find all records; expand compressed files; refuse what cannot be done
    write     every file into a hidden folder inside the destination
    check     index what was written, read all of it back, compare
    publish   move the files to their names

Until the last step no file has its new name, and after an error no file is left. Memory does not grow with
the data beyond what its catalog takes and 4 bytes a record.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.catalog import Catalog
from data_sharding.checks import whole
from data_sharding.convert import targets
from data_sharding.convert.sources import ImageNames, index_source, records_in
from data_sharding.errors import CorruptRecordError, ExampleError, PlanError
from data_sharding.formats.record_format import RecordFormat
from data_sharding.formats.registry import format_named
from data_sharding.formats.tar_members import tar_sample
from data_sharding.formats.writers import shard_names, too_few
from data_sharding.permutation import Permutation
from data_sharding.reading.record_reader import RecordReader
from data_sharding.storage import is_remote
from data_sharding.storage.input_files import Paths
from data_sharding.storage.redaction import redacted

Progress = Callable[[Literal["write", "check"], int, int], None]
"""Called with the step, records done and records in all."""


class Converted(NamedTuple):
    """What was written: the files in order, their number of records, and the fingerprint of their catalog."""

    paths: list[Path]
    records: int
    fingerprint: str


def convert(
    sources: Paths,
    folder: str | Path,
    num_shards: int,
    *,
    to: RecordFormat | str = "tfrecord",
    format: RecordFormat | str | None = None,  # noqa: A002  the word that users know
    name: str | None = None,
    shuffle: int | None = None,
    payloads: targets.Payloads | None = None,
    on_progress: Progress | None = None,
) -> Converted:
    """Write all records of `sources` into `num_shards` files named `<name>-00000-of-00004.tfrecord` and so on.

    Args:
        sources: files, folders, globs or URLs; files of tfrecord, recordio and tar may be compressed with gzip.
        folder: where the files go; made if missing.
        to: tfrecord, recordio or tar.
        format: how the sources are kept; default: what their names suggest.
        name: of the new set; default: the folder's own.
        shuffle: seed of a permutation of all records; default: their order is kept.
        payloads: on the way to tar, what payloads that may be Examples are taken for; see `convert.targets`.
        on_progress: told of every record.

    Raises:
        PlanError: no such format, fewer than one file or more than records, sources and folder overlap, or the folder
            holds a set of that name.
        ShardingError: the sources cannot be read, or a record cannot be put into the target's form.
    """
    target = format_named(to) if isinstance(to, str) else to
    if is_remote(str(folder)):
        fact = f"The destination is {redacted(str(folder))}."
        conflict = "Only files on this machine's disks can be written whole or not at all."
        raise PlanError(fact, conflict, "convert into a folder, then copy it with the storage's own tool.")
    destination = Path(folder).resolve()
    name = destination.name or "records" if name is None else name
    _check_request(target, num_shards, name)
    _check_apart(sources, destination)
    targets.check_free(destination, name)
    made = not destination.exists()
    destination.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".convert-", dir=destination) as scratch:
            progress = on_progress or (lambda *_: None)
            paths = [Path(scratch) / file for file in shard_names(name, num_shards, targets.SUFFIXES[target.name])]
            source = index_source(sources, format, Path(scratch))
            digests = _write(source, paths, target, payloads, shuffle, progress)
            written = Catalog.index(paths, format=target)
            _check(written, digests, progress)
            targets.check_free(destination, name)
            return Converted(_publish(paths, destination), len(written), written.fingerprint)
    except BaseException:
        if made and not any(destination.iterdir()):
            destination.rmdir()
        raise


def _write(
    source: Catalog,
    paths: list[Path],
    target: RecordFormat,
    payloads: targets.Payloads | None,
    shuffle: int | None,
    on_progress: Progress,
) -> NDArray[np.uint32]:
    """Write all files; returns the digest of each record, uint32[N]."""
    encode = targets.encoder_of(source, target.name, payloads)
    if len(paths) > (total := len(source)):
        raise too_few(total, len(paths))
    digests = np.empty(total, np.uint32)
    order = None if shuffle is None else Permutation(total, shuffle, 0)
    names = ImageNames(source) if source.format.name == "image_folder" else None
    with RecordReader(source) as reader:
        for part, path in enumerate(paths):
            first, last = total * part // len(paths), total * (part + 1) // len(paths)
            ids = np.arange(first, last)
            with targets.open_shard(path, target, encode) as write:
                for record in records_in(reader, ids if order is None else order(ids), first, names):
                    try:
                        digests[record.number] = write(record)
                    except ExampleError as error:
                        fact = f"The record of {source.describe(record.source_id)} cannot be converted. {error.fact}"
                        raise ExampleError(fact, error.conflict, error.hint) from error
                    on_progress("write", record.number + 1, total)
    return digests


def _check(written: Catalog, digests: NDArray[np.uint32], on_progress: Progress) -> None:
    if len(written) != len(digests):
        raise _not_as_written(written, 0, f"{len(written)} records are found where {len(digests)} were written")
    with RecordReader(written) as reader:
        for record in records_in(reader, np.arange(len(written)), 0):
            found = targets.digest(tar_sample(record.payload) if written.format.name == "tar" else record.payload)
            if found != digests[record.number]:
                raise _not_as_written(written, record.number, f"Record {record.number} is not what was written")
            on_progress("check", record.number + 1, len(written))


def _not_as_written(written: Catalog, record_id: int, how: str) -> CorruptRecordError:
    path, offset = written.files[written.file_ids[record_id]].path, written.frame_offset(record_id)
    fact = f"{how}, in {path} at byte offset {offset}."
    conflict = "Reading back what had just been written gave something else."
    return CorruptRecordError(fact, conflict, "check the disk, and convert again.", path=path, offset=offset)


def _publish(paths: Sequence[Path], destination: Path) -> list[Path]:
    """Move all files to their names, or none."""
    published = [destination / path.name for path in paths]
    try:
        for path, final in zip(paths, published, strict=True):
            os.rename(path, final)
    except BaseException:
        for path, final in zip(paths, published, strict=True):
            if not path.exists():
                final.unlink()
        raise
    return published


def _check_request(target: RecordFormat, num_shards: int, name: str) -> None:
    if target.name not in targets.SUFFIXES:
        fact = f"Records were to be written in the format {target.name}."
        raise PlanError(fact, "It can be read but not written.", f"choose {', '.join(targets.SUFFIXES)}.")
    if not 1 <= whole("num_shards", num_shards) <= 99999:
        raise PlanError(f"{num_shards} files were asked for.", "Records need 1 to 99999.", "give another number.")
    if not name or name.startswith(".") or "/" in name:
        raise PlanError(
            f"The new files were to be named {name!r}.",
            "A name must not be empty, hidden or lead elsewhere.",
            "choose a plain name.",
        )


def _check_apart(sources: Paths, destination: Path) -> None:
    named = [sources] if isinstance(sources, str | Path) else sources
    for source in map(str, named):
        path = Path(source).resolve()
        overlap = destination.is_relative_to(path) if path.is_dir() else path.parent == destination
        if overlap and not is_remote(source):
            fact = f"{source} and the folder {destination} overlap."
            conflict = "Readers of the folder would get old and new records together."
            raise PlanError(fact, conflict, "choose another folder.")
