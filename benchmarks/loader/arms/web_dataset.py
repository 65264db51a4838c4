"""webdataset: tar files, read from front to back."""

from __future__ import annotations

import io
import itertools
import tarfile
from pathlib import Path
from typing import Any

import webdataset as wds  # type: ignore[import-not-found,import-untyped,unused-ignore]

from benchmarks.loader.arms.interface import Batches, Order
from benchmarks.loader.datasets import SHARDS, DataSet


class WebDatasetArm:
    """No check of the payload, a shuffle buffer, no way to resume but to read again."""

    format = "tar"
    resumes = "reread"

    def versions(self) -> dict[str, str]:
        return {"webdataset": wds.__version__}

    def prepare(self, folder: Path, data: DataSet) -> None:
        payloads = data.payloads()
        number = 0
        for shard in range(SHARDS):
            with tarfile.open(folder / f"part-{shard:05d}.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
                while number < data.records * (shard + 1) // SHARDS:
                    payload = next(payloads)
                    member = tarfile.TarInfo(f"{number:08d}.bin")
                    member.size = len(payload)
                    archive.addfile(member, io.BytesIO(payload))
                    archive.getmembers().clear()  # an archive remembers its members: memory that grows with the data
                    number += 1

    def open(self, folder: Path, data: DataSet, order: Order) -> Any:
        dataset = wds.WebDataset(sorted(map(str, folder.glob("*.tar"))), shardshuffle=False, seed=17)
        if order == "shuffled":
            dataset = dataset.shuffle(data.shuffle_buffer, initial=data.shuffle_buffer)
        return dataset, data.batch

    def batches(self, opened: Any) -> Batches:
        dataset, size = opened
        samples = (sample["bin"] for sample in dataset)
        while batch := list(itertools.islice(samples, size)):
            yield batch

    def state_at(self, opened: Any, step: int) -> int:
        del opened
        return step

    def resume(self, opened: Any, state: int) -> Batches:
        return itertools.islice(self.batches(opened), state, None)

    def close(self, opened: Any) -> None:
        del opened
