"""The `tfrecord` package: TFRecord files read from front to back, CRCs skipped."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tfrecord import iterator_utils, reader  # type: ignore[import-not-found,import-untyped,unused-ignore]

from benchmarks.loader.arms.interface import Batches, Order
from benchmarks.loader.datasets import DataSet


class TfRecordArm:
    """A shuffle buffer, no way to resume but to read again."""

    format = "tfrecord"
    resumes = "reread"

    def versions(self) -> dict[str, str]:
        return {"tfrecord": version("tfrecord")}

    def prepare(self, folder: Path, data: DataSet) -> None:
        raise NotImplementedError("data_sharding writes the TFRecord files")

    def open(self, folder: Path, data: DataSet, order: Order) -> Any:
        return sorted(map(str, folder.glob("*.tfrecord"))), data, order

    def batches(self, opened: Any) -> Batches:
        paths, data, order = opened
        # The iterator hands out views of one buffer: a batch can only hold copies.
        records: Iterator[bytes] = (bytes(view) for path in paths for view in reader.tfrecord_iterator(path))
        if order == "shuffled":
            records = iter(iterator_utils.shuffle_iterator(records, data.shuffle_buffer))
        while batch := list(itertools.islice(records, data.batch)):
            yield batch

    def state_at(self, opened: Any, step: int) -> int:
        del opened
        return step

    def resume(self, opened: Any, state: int) -> Batches:
        return itertools.islice(self.batches(opened), state, None)

    def close(self, opened: Any) -> None:
        del opened
