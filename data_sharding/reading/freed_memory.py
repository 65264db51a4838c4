"""What the C library does with the memory of a batch that is not used any more."""

import functools
from typing import Final

import numpy as np

_LARGEST_THRESHOLD: Final = 2**25  # DEFAULT_MMAP_THRESHOLD_MAX of glibc on 64-bit machines (malloc/malloc.c)


@functools.cache
def keep_freed_memory() -> None:
    """Let glibc keep up to 64 MiB of freed memory instead of handing it back after each batch of large records.

    glibc raises its thresholds by itself when a large block that it had mapped is freed (mallopt(3), M_MMAP_THRESHOLD,
    "dynamic"): so one is made and freed here, once a process. No page of it is ever touched.
    """
    np.empty(_LARGEST_THRESHOLD - 2**16, np.uint8)
