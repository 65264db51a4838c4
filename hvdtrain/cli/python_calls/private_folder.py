"""What a call hands to its workers and gets back: files in a folder that nobody else can open."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hvdtrain.errors import UsageError


@contextmanager
def private_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder with mode 0700 in `parent` (None: where temporary files are), which the end of the block removes.

    Raises UsageError: it cannot be made there.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix=".hvdtrain-call-", dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise UsageError(
            f"No folder can be made in {parent or tempfile.gettempdir()}: {error.strerror}.",
            "The call and its workers exchange files there.",
            "set TMPDIR to a folder that can be written, or name one by shared_folder=.",
        ) from error
    with folder as path:
        yield Path(path).absolute()
