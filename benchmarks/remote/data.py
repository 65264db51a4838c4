"""The records that all arms read: 1 KB each, numbered, as TFRecord, tar and MDS shards."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

RECORDS: Final = 100_000
SHARDS: Final = 16
BYTES: Final = 1024
CLASSES: Final = 100
"""The records are sorted by class: record i is of class i * CLASSES // RECORDS."""

_MDS: Final = """
import sys
from benchmarks.remote.data import BYTES, RECORDS, SHARDS, payloads
from benchmarks.remote.streaming_alone import streaming
limit = RECORDS // SHARDS * (BYTES + 8) + 8192
with streaming.MDSWriter(out=sys.argv[1], columns={"bin": "bytes"}, size_limit=limit) as writer:
    for payload in payloads():
        writer.write({"bin": payload})
"""


def payloads() -> Iterator[bytes]:
    """Each begins with its number, int64 little-endian."""
    random = np.random.default_rng(7)
    for number in range(RECORDS):
        yield number.to_bytes(8, "little") + random.bytes(BYTES - 8)


def classes_in(batch: list[bytes]) -> int:
    """Of how many classes the records of a batch are."""
    return len({int.from_bytes(payload[:8], "little") * CLASSES // RECORDS for payload in batch})


def write_all(folder: Path, peers_python: Path | None) -> None:
    """Make what is not there: tfrecord/ with a published index, tar/, and mds/ where streaming is installed."""
    if not (folder / "tfrecord").exists():
        _write_tfrecords(folder / "tfrecord")
    if not (folder / "tar").exists():
        _write_tars(folder / "tar")
    if peers_python is not None and not (folder / "mds").exists():
        subprocess.run([peers_python, "-c", _MDS, folder / "mds"], check=True)


def _write_tfrecords(folder: Path) -> None:
    import data_sharding as ds  # not in the peers' environment

    folder.mkdir(parents=True)
    edges = [RECORDS * shard // SHARDS for shard in range(SHARDS + 1)]
    records = payloads()
    for shard in range(SHARDS):
        with ds.TFRecordWriter(folder / f"part-{shard:05d}.tfrecord") as writer:
            for _ in range(edges[shard], edges[shard + 1]):
                writer.write(next(records))
    ds.Catalog.index(folder, publish=True)


def _write_tars(folder: Path) -> None:
    folder.mkdir(parents=True)
    records, number = payloads(), 0
    for shard in range(SHARDS):
        with tarfile.open(folder / f"part-{shard:05d}.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
            while number < RECORDS * (shard + 1) // SHARDS:
                member = tarfile.TarInfo(f"{number:08d}.bin")
                member.size = BYTES
                archive.addfile(member, io.BytesIO(next(records)))
                archive.getmembers().clear()  # an archive remembers its members
                number += 1
