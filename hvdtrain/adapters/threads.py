"""How many threads one worker may compute with."""

from __future__ import annotations

import os
from collections.abc import Mapping


def threads_per_worker(local_size: int, environ: Mapping[str, str]) -> int:
    """Threads for one of `local_size` workers on this machine, at least 1.

    The user's OMP_NUM_THREADS wins. A worker that its launcher bound to some cores uses those; else the
    machine's cores are shared out, since frameworks would take all of them for every worker.
    """
    chosen = environ.get("OMP_NUM_THREADS", "")
    if chosen.isdigit() and int(chosen) > 0:
        return int(chosen)
    allowed = len(os.sched_getaffinity(0))
    bound_by_launcher = allowed < (os.cpu_count() or 1)
    return max(1, allowed if bound_by_launcher else allowed // local_size)
