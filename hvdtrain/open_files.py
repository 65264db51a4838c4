"""How many files and connections this process may have open: many systems allow 1,024 unless a program asks."""

import resource
from contextlib import suppress
from typing import Final

_OTHERS: Final = 256  # open files of a process that has few connections


def allow_open_files(count: int) -> None:
    """Raise this process's limit, if it is lower, so that it may have `count` files open besides its usual ones, as
    far as the system allows. Processes that it starts from now on inherit that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHERS if hard == resource.RLIM_INFINITY else min(count + _OTHERS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # a system with a limit of its own: what is missing fails later
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
