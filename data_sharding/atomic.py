"""Files that appear complete or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def atomic_file(path: str | Path) -> Iterator[BinaryIO]:
    """Yield a binary file that takes the name `path` when the block ends well; otherwise nothing is left.

    The bytes are written beside `path` under a hidden temporary name, flushed to disk, then renamed, and the
    folder is flushed too: after a crash `path` holds either its old content or all of the new.

    Raises:
        OSError: the folder does not exist or cannot be written.
    """
    final = Path(path)
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
    _flush_folder(final.parent)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
