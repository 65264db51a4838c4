"""Whether a training holds a run folder, without taking it away from one."""

import fcntl
import os
from pathlib import Path
from typing import Final

LOCK_NAME: Final = ".lock"
LOOK_SECONDS: Final = 1.0
"""Who claims a folder waits so long for those that only look. Each of them needs microseconds."""


def is_locked(run: Path) -> bool | None:
    """Whether a process on a host that shares its locks with this one holds the run folder. None: nobody can tell, as
    on a file system without locks."""
    try:
        lock = os.open(run / LOCK_NAME, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # several may look at once
        fcntl.flock(lock, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(lock)
    return False
