"""The files that a conversion writes: their names, and their writers."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from data_sharding.convert.content import SourceRecord, digest
from data_sharding.errors import PlanError
from data_sharding.formats.interface import RecordFormat
from data_sharding.formats.recordio import RecordIOFormat
from data_sharding.formats.tar_members import TarSample
from data_sharding.formats.writers import RecordIOWriter, TarWriter, TFRecordWriter

SUFFIXES: Final = {"tfrecord": ".tfrecord", "recordio": ".rec", "tar": ".tar"}
"""Formats that can be written, with the extension of their files."""


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


@contextlib.contextmanager
def open_shard(
    path: Path, target: RecordFormat, encode: Callable[[SourceRecord], bytes | TarSample]
) -> Iterator[Callable[[SourceRecord], int]]:
    """Write one file, which gets its name when the block ends well.

    Yields:
        A function that appends a record in the target's form, and returns the digest of what was appended.
    """
    multipart = target.multipart if isinstance(target, RecordIOFormat) else "dmlc"
    samples = TarWriter(path) if target.name == "tar" else None
    payloads = RecordIOWriter(path, multipart) if target.name == "recordio" else TFRecordWriter(path)
    last_key: str | None = None

    def write(record: SourceRecord) -> int:
        nonlocal last_key
        content = encode(record)
        if isinstance(content, bytes):
            payloads.write(content)
        elif samples is not None:
            if content.key == last_key:
                content = content._replace(key=f"{content.key}-{record.number:08d}")
            samples.write(content.key, content.members)
            last_key = content.key
        return digest(content)

    with samples or payloads:
        yield write
