"""How much memory this process takes, as Linux counts it."""

import os
from typing import Final

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Of this process's memory, what is in RAM now; 0 where the system does not tell. Takes about ten microseconds."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def own_bytes() -> int:
    """Of this process's memory in RAM, what is not a page of a file; 0 where that is not known."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file if ":" in line)
        return int(lines["RssAnon"].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return 0
