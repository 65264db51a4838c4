"""mpi4py and Horovod in one process: they must have loaded one and the same MPI."""

from __future__ import annotations

import horovod.torch as hvd
import torch
from mpi4py import MPI

hvd.init()
world = MPI.COMM_WORLD
by_mpi = world.allreduce(hvd.rank() + 1)
by_horovod = int(hvd.allreduce(torch.tensor([world.rank + 1]), op=hvd.Sum, name="sum")[0])
with open("/proc/self/maps") as maps:
    libraries = sorted({line.split()[-1] for line in maps if "/libmpi.so" in line})
if hvd.rank() == 0:
    print(f"RESULT {world.size} {hvd.size()} {by_mpi} {by_horovod} {len(libraries)}")
