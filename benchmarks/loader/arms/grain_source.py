"""grain: a MapDataset over a random-access source, of TFRecord or of ArrayRecord files."""

from __future__ import annotations

import mmap
from importlib.metadata import version
from pathlib import Path
from typing import Any

import google_crc32c
import grain  # type: ignore[import-not-found,import-untyped,unused-ignore]
import numpy as np
from array_record.python.array_record_data_source import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
    ArrayRecordDataSource,
)
from array_record.python.array_record_module import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
    ArrayRecordWriter,
)

from benchmarks.loader.arms.interface import Batches, Order
from benchmarks.loader.datasets import SHARDS, DataSet


class _TfRecordSource:
    """The `RandomAccessDataSource` that grain's users write for TFRecord files: maps, an index, a slice a record."""

    def __init__(self, folder: Path) -> None:
        with np.load(folder / "index.npz") as index:
            self._files: list[int] = index["file_ids"].tolist()
            self._begins: list[int] = index["offsets"].tolist()
            self._ends: list[int] = (index["offsets"] + index["lengths"]).tolist()
            self._crcs = index["crcs"].tolist()
        self._maps: list[mmap.mmap] = []
        for path in sorted(folder.glob("*.tfrecord")):
            with path.open("rb") as file:
                self._maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, record: int) -> bytes:
        return self._maps[self._files[record]][self._begins[record] : self._ends[record]]


class _CheckedSource(_TfRecordSource):
    """The same, with the check of the payload's CRC that its user would have to write."""

    def __getitem__(self, record: int) -> bytes:
        payload = super().__getitem__(record)
        crc = google_crc32c.value(payload)
        if ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF != self._crcs[record]:
            raise ValueError(f"record {record} is damaged")
        return payload


class _GrainBase:
    resumes = "restore"

    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("grain", "array_record")}

    def batches(self, opened: Any) -> Batches:
        return iter(opened)

    def state_at(self, opened: Any, step: int) -> Any:
        iterator = iter(opened)
        for _ in range(step):
            next(iterator)
        return iterator.get_state()

    def resume(self, opened: Any, state: Any) -> Batches:
        iterator: Any = iter(opened)
        iterator.set_state(state)
        batches: Batches = iterator
        return batches

    def close(self, opened: Any) -> None:
        del opened

    def _pipeline(self, source: Any, data: DataSet, order: Order) -> Any:
        dataset = grain.MapDataset.source(source)
        if order == "shuffled":
            dataset = dataset.shuffle(seed=17)
        # No threads: what grain's documentation recommends for data in memory, and the fastest here.
        return dataset.batch(data.batch, batch_fn=list).to_iter_dataset(
            grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        )


class GrainArm(_GrainBase):
    """Over the TFRecord files, with a global shuffle."""

    format = "tfrecord"

    def __init__(self, check_crc: bool) -> None:
        self._source = _CheckedSource if check_crc else _TfRecordSource

    def prepare(self, folder: Path, data: DataSet) -> None:
        raise NotImplementedError("data_sharding writes the TFRecord files")

    def open(self, folder: Path, data: DataSet, order: Order) -> Any:
        return self._pipeline(self._source(folder), data, order)


class ArrayRecordArm(_GrainBase):
    """Over ArrayRecord files, uncompressed, with one record in a group, as grain wants them."""

    format = "array_record"

    def prepare(self, folder: Path, data: DataSet) -> None:
        payloads = data.payloads()
        number = 0
        for shard in range(SHARDS):
            path = folder / f"part-{shard:05d}.array_record"
            writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
            while number < data.records * (shard + 1) // SHARDS:
                writer.write(next(payloads))
                number += 1
            writer.close()

    def open(self, folder: Path, data: DataSet, order: Order) -> Any:
        source = ArrayRecordDataSource([str(path) for path in sorted(folder.glob("*.array_record"))])
        return self._pipeline(source, data, order)
