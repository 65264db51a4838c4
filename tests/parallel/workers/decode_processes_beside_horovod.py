"""Decode in processes on ranks that have started Horovod and MPI, and whose decoder's module starts MPI too.

Argument: a folder of 20 records, record i of the one byte i. No main guard, as in many users' scripts.
"""

from __future__ import annotations

import sys
from pathlib import Path

import horovod.torch as hvd
import torch

hvd.init()
sys.path.insert(0, str(Path(__file__).parent))

import decode_with_mpi  # noqa: E402

import data_sharding as ds  # noqa: E402

catalog = ds.Catalog.index(sys.argv[1])
total = 0
with ds.RecordReader(catalog) as reader:
    for epoch in range(2):
        plan = ds.ShardPlan.for_catalog(catalog, global_batch=6, seed=0, epoch=epoch)
        with ds.ShardLoader(
            plan, reader, decode_with_mpi.decode, rank=hvd.rank(), size=hvd.size(), processes=2, timeout_s=60
        ) as loader:
            for batch in loader:
                assert batch.features["world"].tolist() == [1] * len(batch.ids)
                mine = torch.tensor(float((batch.features["value"] * batch.weights).sum()))
                total += int(hvd.allreduce(mine, op=hvd.Sum))
print("RESULT", hvd.rank(), decode_with_mpi.WORLD_SIZE, total, flush=True)
