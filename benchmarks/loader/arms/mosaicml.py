"""mosaicml-streaming: MDS files on the local disk."""

from __future__ import annotations

import itertools
import sys
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any

# PyPI's torchvision is built for CUDA and cannot be imported beside a CPU build of torch; `streaming` imports it for
# its picture data sets, which are not used here.
sys.modules["streaming.vision"] = types.ModuleType("streaming.vision")

import streaming  # type: ignore[import-not-found,unused-ignore]  # noqa: E402

from benchmarks.loader.arms.interface import Batches, Order  # noqa: E402
from benchmarks.loader.datasets import SHARDS, DataSet  # noqa: E402


class MosaicArm:
    """No check of the payload (hashes of whole files are checked when these are downloaded); shuffles by blocks."""

    format = "mds"
    resumes = "restore"

    def versions(self) -> dict[str, str]:
        return {"mosaicml-streaming": version("mosaicml-streaming")}

    def prepare(self, folder: Path, data: DataSet) -> None:
        each = sum(map(len, data.payloads())) // SHARDS + data.records * 8 // SHARDS
        with streaming.MDSWriter(out=str(folder), columns={"bin": "bytes"}, size_limit=each + 4096) as writer:
            for payload in data.payloads():
                writer.write({"bin": payload})

    def open(self, folder: Path, data: DataSet, order: Order) -> Any:
        streaming.base.util.clean_stale_shared_memory()
        dataset = streaming.StreamingDataset(
            local=str(folder), batch_size=data.batch, shuffle=order == "shuffled", shuffle_seed=17
        )
        return dataset, data.batch

    def batches(self, opened: Any) -> Batches:
        dataset, size = opened
        samples = (sample["bin"] for sample in dataset)
        while batch := list(itertools.islice(samples, size)):
            yield batch

    def state_at(self, opened: Any, step: int) -> Any:
        dataset, size = opened
        iterator = iter(dataset)
        next(iterator)
        state = dataset.state_dict(step * size, from_beginning=True)
        iterator.close()
        return state

    def resume(self, opened: Any, state: Any) -> Batches:
        opened[0].load_state_dict(state)
        return self.batches(opened)

    def close(self, opened: Any) -> None:
        dataset, _ = opened
        if hasattr(dataset, "_iterator"):
            dataset._iterator.exit()
        dataset._executor.shutdown()
        # Its shared memory is named after its files: the next data set over them must find it gone.
        del dataset
