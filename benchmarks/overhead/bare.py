"""What one writes by hand: `python -m benchmarks.overhead.bare tensors|loader|records`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.overhead.problem import BATCH, Clock, decode, model, optimizer_of, records, tensors, timed
from data_sharding import Catalog, RecordReader, ShardLoader, ShardPlan


def batches(kind: str) -> Iterable[Any]:
    """Slices of two tensors in order; torch's DataLoader, shuffled, in this process; or records of a file, shuffled."""
    if kind == "records":
        return _from_a_file()
    x, y = tensors()
    if kind == "tensors":
        return zip(x.split(BATCH), y.split(BATCH), strict=True)
    return DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)


def _from_a_file() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """As hvdtrain reads them: checked, decoded, ahead."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "records.npy")
        np.save(path, records())
        catalog = Catalog.index(path)
        plan = ShardPlan.for_catalog(catalog, global_batch=BATCH, seed=0, epoch=0)
        with ShardLoader(plan, RecordReader(catalog), decode, rank=0, size=1) as loader:
            for batch in loader:
                yield torch.from_numpy(batch.features["x"]), torch.from_numpy(batch.features["y"])


def main() -> None:
    """Train, and print the time."""
    torch.set_num_threads(1)
    network = model()
    optimizer = optimizer_of(network)
    for x, y in timed(batches(sys.argv[1]), Clock()):
        optimizer.zero_grad()
        functional.mse_loss(network(x)[:, 0], y).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
