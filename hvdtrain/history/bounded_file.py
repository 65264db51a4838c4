"""Files of a run folder that a reader did not write: they may be of any size, half written, or no files at all."""

import os
import stat
from pathlib import Path


class UnusableFileError(ValueError):
    """What a file is, in words that follow its name in a sentence."""


def read_bounded(path: Path, most: int) -> bytes:
    """The whole content of the file `path`.

    Args:
        most: bytes that it may have.

    Raises:
        OSError: as `open` and `read` do.
        UnusableFileError: it is larger, or no regular file.
    """
    with open(path, "rb", opener=_open_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise UnusableFileError("is no regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise UnusableFileError(f"is larger than {most / 2**20:.0f} MiB, so that no run can have written it")
    return content


def _open_at_once(path: str, flags: int) -> int:
    """A FIFO without a writer would otherwise block its reader for ever."""
    return os.open(path, flags | os.O_NONBLOCK)
