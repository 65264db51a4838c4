"""Which processes use a folder now: a locked file for each of them, which a kill unlocks."""

import contextlib
import fcntl
import os
import secrets
from pathlib import Path


class Session:
    """This process among those that use a folder, until `close` or its end."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        path = folder / f"{os.getpid()}-{secrets.token_hex(4)}"
        # Locked before it has its name: under it, a file without a lock is a dead process's.
        hidden = path.with_name(f".{path.name}")
        self._descriptor = os.open(hidden, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            os.replace(hidden, path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it. May be called twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def oldest_begin(folder: Path) -> float:
    """When the oldest living session began, by the disk's clock; infinity without any. Dead ones are removed."""
    begins = []
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
            except BlockingIOError:
                begins.append(os.fstat(file.fileno()).st_mtime)
    return min(begins, default=float("inf"))
