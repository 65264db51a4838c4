"""What a conversion reads: any data set that can be indexed, and files of three formats compressed with gzip.

A gzip stream can only be read from its start, so no record in it can be found at random. It is read once, in sequence,
into a temporary file; gzip's own CRC-32 is checked on the way, the records' checksums afterwards.
"""

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from data_sharding.catalog import Catalog
from data_sharding.convert.targets import SourceRecord
from data_sharding.errors import CorruptRecordError, MissingDataError, PlanError
from data_sharding.formats.image_folder import root_of
from data_sharding.formats.record_format import GZIP_MAGIC, RecordFormat
from data_sharding.formats.registry import format_named, format_of
from data_sharding.formats.tar import scan_archive
from data_sharding.formats.tar_members import SampleParts, next_member, split_name
from data_sharding.formats.tfrecord import HEADER, length_crc
from data_sharding.formats.writers import TarWriter
from data_sharding.reading.record_reader import RecordReader
from data_sharding.reading.record_table import RecordTable
from data_sharding.storage import describe_file, is_remote, open_source
from data_sharding.storage.input_files import Paths, find_files
from data_sharding.storage.torn_maps import watching_maps

_EXPANDED: Final = ("tfrecord", "recordio", "tar")
_CHUNK_BYTES: Final = 1 << 20
_BATCH_RECORDS: Final = 1024
_BATCH_BYTES: Final = 32 << 20


def index_source(sources: Paths, record_format: RecordFormat | str | None, scratch: Path) -> Catalog:
    """Index a data set. Files compressed with gzip are expanded into the folder `scratch` first, and tar archives whose
    samples are scattered are written there with the members of each sample together. Errors as `Catalog.index`.
    """
    named = [str(sources)] if isinstance(sources, str | Path) else [str(source) for source in sources]
    first = named[0] if named else ""
    bare = first[:-4] + ".tar" if first.lower().endswith(".tgz") else first.removesuffix(".gz")
    suggested = record_format or format_of(first if os.path.isdir(first) else bare)
    chosen = format_named(suggested) if isinstance(suggested, str) else suggested
    if chosen.name not in _EXPANDED:
        return Catalog.index(named, format=chosen)
    compressed = tuple(f"{pattern}.gz" for pattern in chosen.patterns) + (("*.tgz",) if chosen.name == "tar" else ())
    files = find_files(named, (*chosen.patterns, *compressed), chosen.recursive)
    originals: dict[str, str] = {}
    for number, file in enumerate(files):
        if _is_compressed(file):
            files[number] = str(scratch / f"{number}-{os.path.basename(file)}")
            originals[files[number]] = file
            _expand_gzip(file, Path(files[number]))
    try:
        if chosen.name == "tar":
            for number, file in enumerate(files):
                if _is_scattered(file):
                    files[number] = str(scratch / f"joined-{number}-{os.path.basename(file)}")
                    _join_samples(file, Path(files[number]))
        return Catalog.index(files, check_data=bool(originals), format=chosen)
    except (MissingDataError, CorruptRecordError) as error:
        of_original = _of_originals(error, originals)
        if of_original is None:
            raise
        raise of_original from error


def _of_originals(error: MissingDataError | CorruptRecordError, originals: Mapping[str, str]) -> Exception | None:
    """The same error about the file that a user knows, of an expanded one; None: it is of none. `originals`: the file
    that each was expanded from."""
    expanded = next((each for each in originals if each in error.fact), None)
    if expanded is None:
        return None
    original = originals[expanded]
    fact = error.fact.replace(expanded, f"the content of {original}")
    if isinstance(error, MissingDataError):
        return MissingDataError(fact, error.conflict, error.hint)
    return CorruptRecordError(fact, error.conflict, error.hint, path=original, offset=error.offset)


class ImageNames:
    """Key and extension of each file of a catalog of images: "cat/17" and "jpg" for root/cat/17.JPG.

    The folders stay in the key, so that unpacked shards are the folder of images again. A dot before the extension
    becomes "_", since a key ends at the first one. If two files have the same key, the second gets its number.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._paths = [file.path for file in catalog.files]
        self._root = len(root_of(catalog))
        keys = (os.fsencode(self._split(file)[0]) for file in range(len(self._paths)))
        digests = np.array([int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) for key in keys], np.uint64)
        self._is_first = np.zeros(len(digests), np.bool_)
        self._is_first[np.unique(digests, return_index=True)[1]] = True

    def __call__(self, file_id: int) -> tuple[str, str]:
        """Key, and extension in lower case without its dot."""
        key, extension = self._split(file_id)
        return (key if self._is_first[file_id] else f"{key}-{file_id:08d}"), extension

    def _split(self, file_id: int) -> tuple[str, str]:
        folder, slash, base = self._paths[file_id][self._root :].rpartition("/")
        stem, extension = os.path.splitext(base)
        return folder + slash + stem.replace(".", "_"), extension[1:].lower()


def records_in(
    reader: RecordReader, ids: NDArray[np.int64], first_number: int, names: ImageNames | None = None
) -> Iterator[SourceRecord]:
    """Records ids int64[n] in that order, numbered from `first_number` on; a bounded number of bytes at a time."""
    catalog = reader.catalog
    number = first_number
    for batch in _batches(catalog, ids):
        loaded = reader.load(batch)
        labels: list[int | None] = [None] * len(batch) if loaded.labels is None else loaded.labels.tolist()
        for source_id, payload, label in zip(batch.tolist(), loaded.payloads, labels, strict=True):
            key, suffix = names(int(catalog.file_ids[source_id])) if names else ("", "")
            yield SourceRecord(number, source_id, payload, label, key, suffix)
            number += 1


def _batches(catalog: RecordTable, ids: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for first in range(0, len(ids), _BATCH_RECORDS):
        some = ids[first : first + _BATCH_RECORDS]
        # Cut wherever the running total passes another multiple of the limit.
        portion = np.cumsum(catalog.lengths[some]) // _BATCH_BYTES
        yield from np.split(some, np.flatnonzero(np.diff(portion)) + 1)


def _is_compressed(file: str) -> bool:
    """Whether a file is gzip. The CRC tells a TFRecord file whose first length begins like gzip apart."""
    if is_remote(file) and file.lower().endswith((".gz", ".tgz")):
        fact = f"{file} is compressed and remote."
        raise PlanError(fact, "Only local files are expanded.", "copy it to this machine, and convert the copy.")
    if is_remote(file) or not os.path.isfile(file):
        return False
    with open(file, "rb") as opened:
        head = opened.read(HEADER.size)
    if not head.startswith(GZIP_MAGIC):
        return False
    length, stored = HEADER.unpack(head.ljust(HEADER.size, b"\0"))
    return len(head) < HEADER.size or bool(stored != length_crc(length))


def _is_scattered(file: str) -> bool:
    """Whether samples of a tar archive have to be joined; damage in it is raised, as it is where they need not."""
    with watching_maps:
        index, scattered = scan_archive(file, open_source(describe_file(file)))
    if scattered is not None and index.damage:
        raise index.damage[0]
    return scattered is not None


def _expand_gzip(path: str, target: Path) -> None:
    """Decompress a local file, with flat memory. `target` must not exist. Raises CorruptRecordError."""
    expanded = 0
    with open(target, "xb") as plain, gzip.open(path, "rb") as stream:
        try:
            while chunk := stream.read1(_CHUNK_BYTES):  # `read` would lose what precedes the damage
                expanded += plain.write(chunk)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            fact = f"The gzip stream of {path} is damaged after {expanded} bytes of content."
            conflict = f"It cannot be expanded any further: {error}."
            raise CorruptRecordError(fact, conflict, path=path, offset=expanded) from error


def _join_samples(path: str, target: Path) -> None:
    """Write an archive again, with the members of each sample together at the place of the first. It has no damage."""
    entry = describe_file(path)
    with watching_maps, TarWriter(target) as writer:
        source = open_source(entry)
        position, parts = 0, SampleParts()
        runs: list[tuple[str, dict[str, slice]]] = []
        joined: list[int] = []
        while (member := next_member(source, position, entry.size)) is not None:
            position = member.after
            split = split_name(member.name) if member.is_file else None
            if split is None:
                continue
            if not runs or runs[-1][0] != split[0]:
                runs.append((split[0], {}))
            runs[-1][1][split[1]] = slice(member.data, member.data + member.size)
        for number, (key, spans) in enumerate(runs):
            earlier = parts.rest_of(key, spans, number)
            if earlier is not None:
                runs[earlier][1].update(spans)
            else:
                joined.append(number)
        last = ""
        for number in joined:
            key, spans = runs[number]
            last = key if key != last else f"{key}-{number:08d}"  # what stood between them may have been joined away
            writer.write(last, {extension: source[span] for extension, span in spans.items()})
