"""A rank that computes for two seconds, while Horovod has nothing to exchange, and then waits as long for the last one.

Rank 0 says which share of a core it has used while it waited.
"""

from __future__ import annotations

import os
import time

import horovod.torch as hvd
import torch

from hvdtrain.comm.horovod_world import set_defaults

SECONDS = 2.0

if __name__ == "__main__":
    set_defaults(os.environ, stall_timeout=60)
    hvd.init()
    hvd.allreduce(torch.ones(3), name="before")
    time.sleep(SECONDS)
    hvd.allreduce(torch.ones(3), name="after")
    began, used = time.monotonic(), time.process_time()
    if hvd.rank() == hvd.size() - 1:
        time.sleep(SECONDS)
    hvd.allreduce(torch.ones(3), name="awaited")
    if hvd.rank() == 0:
        print(f"share {(time.process_time() - used) / (time.monotonic() - began):.3f}", flush=True)
    hvd.shutdown()
