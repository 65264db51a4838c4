"""A file or folder that appears whole or not at all, and replaces nothing unasked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from data_sharding.atomic import final_path, sync_folder
from hvdtrain.errors import UsageError

_SAVED_MODEL: Final = "saved_model.pb"


def require_free(path: Path, overwrite: bool) -> None:
    """Raise `UsageError` where `path` is taken, unless it may be overwritten: a file, or a folder with a SavedModel."""
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise UsageError(
            f"{path} is there already.", "It would be lost.", "choose another --output, or add --overwrite."
        )
    if path.is_dir() and not (path / _SAVED_MODEL).is_file():
        raise UsageError(
            f"{path} is a folder, and no SavedModel.",
            "All that is in it would be lost.",
            "choose another --output.",
        )
    if not path.is_dir():
        try:
            final_path(path)
        except OSError as error:
            raise _unwritable(path, error) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A neighbour's name to write to, which then becomes `path`; after an exception nothing is left of it.

    A symlink stays one: what it leads to is replaced.

    Raises:
        UsageError: it cannot be written.
    """
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{os.getpid()}.tmp.{path.name}")  # with the suffix, by which Keras knows the format
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _sync(temporary)
        _put(temporary, path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        _remove(temporary)
    sync_folder(path.parent)


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{path} cannot be written: {error.strerror or error}.", "Nothing was exported.", "choose another --output."
    )


def _put(temporary: Path, path: Path) -> None:
    if not (temporary.is_dir() and path.is_dir()):
        temporary.replace(path)
        return
    old = path.with_name(f".{os.getpid()}.old.{path.name}")
    path.rename(old)
    temporary.rename(path)
    _remove(old)


def _sync(path: Path) -> None:
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    for file in files:
        with file.open("rb+") as opened:
            os.fsync(opened.fileno())


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
