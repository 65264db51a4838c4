"""What a call hands to its workers and gets back: files in a folder that nobody else can open."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from hvdtrain.errors import UsageError

_PREFIX: Final = ".hvdtrain-call-"
_LEAST_AGE_SECONDS: Final = 60.0  # a younger one may not be locked yet


@contextmanager
def private_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder with mode 0700 in `parent` (None: where temporary files are), which the end of the block removes;
    and so are those of calls whose process was killed.

    Raises UsageError: it cannot be made there.
    """
    try:
        _remove_left(Path(parent or tempfile.gettempdir()))
        folder = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise UsageError(
            f"No folder can be made in {parent or tempfile.gettempdir()}: {error.strerror}.",
            "The call and its workers exchange files there.",
            "set TMPDIR to a folder that can be written, or name one by shared_folder=.",
        ) from error
    with folder as path, _locked(Path(path)):
        yield Path(path).absolute()


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold the folder, if nobody does; whether this holds it. Where there are no locks, nobody does."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = True
        except OSError:
            is_held = False
        yield is_held
    finally:
        os.close(file)


def _remove_left(parent: Path) -> None:
    """Those of this user that nobody holds any more."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()
            if status.st_uid == os.getuid() and time.time() - status.st_mtime > _LEAST_AGE_SECONDS:
                with _locked(folder) as is_free:
                    if is_free:
                        shutil.rmtree(folder, ignore_errors=True)
