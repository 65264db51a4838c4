"""The files that a conversion writes: their names, their writers, and proof that they hold what was written."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from data_sharding.catalog import Catalog
from data_sharding.convert_content import (
    Payloads,
    SourceRecord,
    bytes_digest,
    bytes_encoder,
    sample_digest,
    sample_encoder,
)
from data_sharding.errors import CorruptRecordError, PlanError
from data_sharding.formats.interface import RecordFormat
from data_sharding.formats.recordio import RecordIOFormat
from data_sharding.formats.tar_sample import TarSample, tar_sample
from data_sharding.formats.writers import RecordIOWriter, TarWriter, TFRecordWriter

SUFFIXES: Final = {"tfrecord": ".tfrecord", "recordio": ".rec", "tar": ".tar"}
"""Formats that can be written, with the extension of their files."""

Write = Callable[[SourceRecord], int]
"""Appends a record in the target's form and returns the digest of what was appended."""


def shard_names(name: str, num_shards: int, target: RecordFormat) -> list[str]:
    """`<name>-00000-of-00004.tar` and so on."""
    return [f"{name}-{part:05d}-of-{num_shards:05d}{SUFFIXES[target.name]}" for part in range(num_shards)]


def check_free(folder: Path, name: str) -> None:
    """Raise PlanError if a folder holds a set of that name, in any format or number of files."""
    for suffix in SUFFIXES.values():
        there = sorted(folder.glob(f"{glob.escape(name)}-?????-of-?????{suffix}"))
        if there:
            raise PlanError(
                f"{folder} already holds {there[0].name}.",
                f"A second set of the name {name!r} would overwrite it or be mixed up with it.",
                "remove the old files, or choose another folder or name.",
            )


def open_shard(
    path: Path, target: RecordFormat, source_format: str, payloads: Payloads | None
) -> AbstractContextManager[Write]:
    """Write one file, which gets its name when the block ends well; records of `source_format` become the target's."""
    if target.name == "tar":
        return _sample_shard(TarWriter(path), sample_encoder(source_format, payloads))
    encode = bytes_encoder(source_format)
    if isinstance(target, RecordIOFormat):
        return _bytes_shard(RecordIOWriter(path, target.multipart), encode)
    return _bytes_shard(TFRecordWriter(path), encode)


def check_written(paths: Sequence[Path], catalog: Catalog, expected: NDArray[np.uint32]) -> None:
    """Raise CorruptRecordError unless as many records are found as were written."""
    if len(catalog) != len(expected):
        raise _other(f"{len(catalog)} records are found where {len(expected)} were written", str(paths[0]), 0)


def check_same(catalog: Catalog, record_id: int, payload: bytes, expected: NDArray[np.uint32]) -> None:
    """Raise CorruptRecordError unless a payload that was read back has the digest of what was written."""
    digest = sample_digest(tar_sample(payload)) if catalog.format.name == "tar" else bytes_digest(payload)
    if digest != expected[record_id]:
        path = catalog.files[catalog.file_ids[record_id]].path
        raise _other(f"Record {record_id} is not what was written", path, catalog.frame_offset(record_id))


@contextlib.contextmanager
def _bytes_shard(writer: TFRecordWriter | RecordIOWriter, encode: Callable[[SourceRecord], bytes]) -> Iterator[Write]:
    def write(record: SourceRecord) -> int:
        payload = encode(record)
        writer.write(payload)
        return bytes_digest(payload)

    with writer:
        yield write


@contextlib.contextmanager
def _sample_shard(writer: TarWriter, encode: Callable[[SourceRecord], TarSample]) -> Iterator[Write]:
    last_key: str | None = None

    def write(record: SourceRecord) -> int:
        nonlocal last_key
        sample = encode(record)
        if sample.key == last_key:
            sample = sample._replace(key=f"{sample.key}-{record.number:08d}")
        writer.write(sample.key, sample.members)
        last_key = sample.key
        return sample_digest(sample)

    with writer:
        yield write


def _other(how: str, path: str, offset: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"{how}, in {path} at byte offset {offset}.",
        "Reading back what had just been written gave something else.",
        "check the disk, and convert again.",
        path=path,
        offset=offset,
    )
