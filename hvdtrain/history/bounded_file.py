"""Files of a run folder that a reader did not write: they may be of any size, half written, or no files at all."""

import os
import stat
from pathlib import Path
from typing import BinaryIO


class UnusableFileError(ValueError):
    """What a file is, in words that follow its name in a sentence."""


def open_bounded(path: Path) -> BinaryIO:
    """The file `path` for reading, without waiting for a writer as a FIFO would.

    Raises:
        OSError: as `open` does.
        UnusableFileError: it is no regular file.
    """
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115  the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UnusableFileError("is no regular file")
    return file


def read_bounded(path: Path, most: int) -> bytes:
    """The whole content of the file `path`.

    Args:
        most: bytes that it may have.

    Raises:
        OSError: as `open` and `read` do.
        UnusableFileError: it is larger, or no regular file.
    """
    with open_bounded(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UnusableFileError(f"is larger than {most / 2**20:.0f} MiB, so that no run can have written it")
    return content


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
