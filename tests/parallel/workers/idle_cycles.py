"""A rank that computes for two seconds, while Horovod has nothing to exchange."""

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
    hvd.shutdown()
