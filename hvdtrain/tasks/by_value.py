"""Classes and functions of a script or notebook on their way to workers, which cannot import them.

What `__main__` defines is pickled by value, with what it uses of `__main__`; everything else by its name. A pickle runs
code when it is read, so it travels in a file of a folder that nobody but its owner can open.
"""

import errno
import os
import pickle
import stat
from pathlib import Path
from typing import Any, Final

import cloudpickle

from hvdtrain.errors import UsageError

TASK_FILE_VARIABLE: Final = "HVDTRAIN_TASK_FILE"
"""The file with the task's class that `hvdtrain.train` has sent to its workers, which sets this variable itself."""


def packed(value: Any, what: str, hint: str) -> bytes:
    """`value` as bytes. Raises UsageError, with `what` it is and the `hint`: it holds something that cannot be sent."""
    try:
        return cloudpickle.dumps(value)  # type: ignore[no-any-return]
    except Exception as error:  # of any class: it comes from the objects themselves
        raise UsageError(
            f"{what} cannot be pickled: {type(error).__name__}: {error}.",
            "That is how it gets from one process to another.",
            hint,
        ) from error


def unpacked(path: Path, what: str) -> Any:
    """What `packed` has made. Raises UsageError: the file is missing or could be somebody else's, or this process
    cannot import what the object needs."""
    try:
        content = _own_bytes(path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}.",
            f"It holds {what}, which the calling process has written there.",
            "name a folder that all hosts share by shared_folder=.",
        ) from error
    try:
        return pickle.loads(content)
    except Exception as error:
        raise UsageError(
            f"{what[0].upper()}{what[1:]} cannot be loaded: {type(error).__name__}: {error}.",
            "A worker imports what it uses from other modules by their names.",
            "put these modules where workers find them: into the working directory, or install them.",
        ) from error


def sent_task_class() -> Any:
    """The class that `hvdtrain.train` has sent to this worker; None where it has sent none. Errors as `unpacked`."""
    path = os.environ.get(TASK_FILE_VARIABLE)
    return unpacked(Path(path), "the task's class") if path else None


def _own_bytes(path: Path) -> bytes:
    """Raises OSError: the file cannot be read, or its folder is not its owner's alone; then whatever the file's own
    mode is, which follows the umask, nobody else gets to it."""
    with path.open("rb") as file:
        folder = os.stat(path.parent)
        owners = {os.fstat(file.fileno()).st_uid, folder.st_uid}
        if owners != {os.geteuid()} or folder.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise PermissionError(errno.EPERM, "others could have written it")
        return file.read()
