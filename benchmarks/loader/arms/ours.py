"""data_sharding: through its loader with a background thread, and through its reader alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.loader.arms.interface import Batches, Order
from benchmarks.loader.datasets import SHARDS, DataSet
from data_sharding import Catalog, RecordReader, ShardLoader, ShardPlan, TFRecordWriter

_SEED = 17
_PLANNED_TOGETHER = 16


@dataclass
class _Opened:
    reader: RecordReader
    data: DataSet
    order: Order
    stack: ExitStack

    def plan(self) -> ShardPlan:
        shuffle: Literal["global", "none"] = "global" if self.order == "shuffled" else "none"
        return ShardPlan.for_catalog(
            self.reader.catalog, global_batch=self.data.batch, seed=_SEED, epoch=0, shuffle=shuffle
        )


def _as_rows(payloads: Sequence[bytes]) -> dict[str, NDArray[Any]]:
    """The payloads themselves, undecoded: object[k]."""
    rows = np.empty(len(payloads), object)
    rows[:] = list(payloads)
    return {"payload": rows}


class _OursArm:
    format = "tfrecord"
    resumes = "seek"

    def __init__(self, check_crc: bool) -> None:
        self._check_crc = check_crc

    def versions(self) -> dict[str, str]:
        return {"data_sharding": version("hvdtrain"), "google-crc32c": version("google-crc32c")}

    def prepare(self, folder: Path, data: DataSet) -> None:
        payloads = data.payloads()
        ends = [data.records * (shard + 1) // SHARDS for shard in range(SHARDS)]
        for shard, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
            with TFRecordWriter(folder / f"part-{shard:05d}.tfrecord") as writer:
                for _ in range(begin, end):
                    writer.write(next(payloads))
        catalog = Catalog.index(folder / "*.tfrecord")
        catalog.save(folder / "catalog.npz")
        # For grain, whose users bring their own index.
        np.savez(
            folder / "index.npz",
            file_ids=catalog.file_ids,
            offsets=catalog.offsets,
            lengths=catalog.lengths,
            crcs=np.asarray(catalog.crcs),
        )

    def open(self, folder: Path, data: DataSet, order: Order) -> _Opened:
        stack = ExitStack()
        catalog = Catalog.load(folder / "catalog.npz")
        return _Opened(stack.enter_context(RecordReader(catalog, self._check_crc)), data, order, stack)

    def state_at(self, opened: _Opened, step: int) -> int:
        return step * opened.data.batch

    def close(self, opened: _Opened) -> None:
        opened.stack.close()


class LoaderArm(_OursArm):
    """`ShardLoader` with its defaults: one background thread, two batches ahead."""

    def batches(self, opened: _Opened) -> Batches:
        return self.resume(opened, 0)

    def resume(self, opened: _Opened, state: int) -> Batches:
        return self.shard(opened, state, 0, 1)

    def shard(self, opened: _Opened, state: int, rank: int, size: int) -> Batches:
        """One rank's part of what is left of the epoch."""
        plan = opened.plan()
        start = plan.step_at(state)
        loader = ShardLoader(plan, opened.reader, _as_rows, rank=rank, size=size, start_step=start)
        opened.stack.callback(loader.close)
        for batch in loader:
            # A masked slot repeats a record: not work that peers are asked for.
            yield batch.features["payload"][: round(batch.weights.sum())].tolist()


class ReaderArm(_OursArm):
    """`ShardPlan` and `RecordReader` in the caller's thread."""

    def batches(self, opened: _Opened) -> Batches:
        return self.resume(opened, 0)

    def resume(self, opened: _Opened, state: int) -> Batches:
        plan, read = opened.plan(), opened.reader.read
        start = plan.step_at(state)
        for first in range(start, plan.steps, _PLANNED_TOGETHER):
            steps = plan.shards(0, 1, range(first, min(first + _PLANNED_TOGETHER, plan.steps)))
            for ids, weights in zip(steps.ids, steps.weights, strict=True):
                yield read(ids)[: round(weights.sum())]
