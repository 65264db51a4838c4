"""Files that appear complete or not at all."""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def atomic_file(path: str | Path) -> Iterator[BinaryIO]:
    """Yield a binary file that takes the name `path` when the block ends well; otherwise nothing is left.

    The bytes are written beside `path` under a hidden temporary name, flushed to disk, then renamed, and the folder is
    flushed too: after a crash `path` holds either its old content or all of the new. The file that a symlink leads to
    is replaced.

    Raises OSError (the folder does not exist or cannot be written; `path` is not a regular file).
    """
    final = final_path(path)
    temporary = final.with_name(f".{final.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, final)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(final.parent)


def final_path(path: str | Path) -> Path:
    """The file that `path` means: itself, or the one that a symlink leads to. It need not be there yet.

    Raises OSError: `path` is a folder, device, FIFO or socket, which a rename would replace; a symlink leads to itself.
    """
    path = Path(path)  # which makes the folder "." of an empty name
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise FileExistsError(errno.EEXIST, "it is a device, FIFO or socket", str(path))
    return Path(os.path.realpath(path))


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
