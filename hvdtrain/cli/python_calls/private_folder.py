"""What a call hands to its workers and gets back: files in a folder that nobody else can open."""

import glob
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from hvdtrain.errors import UsageError

_PREFIX: Final = ".hvdtrain-call-"


@contextmanager
def private_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder with mode 0700 in `parent` (None: where temporary files are), which the end of the block removes;
    and so are those of calls whose process was killed.

    Raises UsageError: it cannot be made there.
    """
    begin = f"{_PREFIX}{socket.gethostname()}-"
    try:
        _remove_left(Path(parent or tempfile.gettempdir()), begin)
        folder = tempfile.TemporaryDirectory(prefix=f"{begin}{os.getpid()}-", dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise UsageError(
            f"No folder can be made in {parent or tempfile.gettempdir()}: {error.strerror}.",
            "The call and its workers exchange files there.",
            "set TMPDIR to a folder that can be written, or name one by shared_folder=.",
        ) from error
    with folder as path:
        yield Path(path).absolute()


def _remove_left(parent: Path, begin: str) -> None:
    """Folders of this user and host whose process is gone."""
    for folder in parent.glob(f"{glob.escape(begin)}*"):
        process = folder.name.removeprefix(begin).partition("-")[0]
        with suppress(OSError):
            if process.isdecimal() and folder.stat().st_uid == os.getuid() and not Path("/proc", process).exists():
                shutil.rmtree(folder, ignore_errors=True)
