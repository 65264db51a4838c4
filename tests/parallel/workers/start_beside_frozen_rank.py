"""Rank 0 freezes rank 1, starts an allreduce, and lets a thread wake rank 1; again and again.

Whether the thread that starts it has to wait depends on where in its cycle Horovod was when rank 1 froze.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import horovod.torch as hvd
import torch

ROUNDS = 20
FROZEN_S = 0.2


def freeze(process: int) -> None:
    """Returns when the process is stopped, and Horovod's own thread here has come to wait for it."""
    os.kill(process, signal.SIGSTOP)
    while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)
    time.sleep(0.05)  # fifty of Horovod's cycles; nothing tells in which it is


hvd.init(process_sets="dynamic")
processes = hvd.allgather(torch.tensor([os.getpid()]), name="processes").tolist()
for number in range(ROUNDS):
    if hvd.rank() == 0:
        freeze(processes[1])
        threading.Timer(FROZEN_S, os.kill, [processes[1], signal.SIGCONT]).start()
    hvd.synchronize(hvd.allreduce_async_(torch.zeros(1), name=f"round {number}"))
if hvd.rank() == 0:
    print(f"RESULT {ROUNDS} rounds", flush=True)
