"""The per-user cache of built wheels: one folder per recipe, written by one process at a time, all or nothing."""

import fcntl
import os
import shutil
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.user_cache import user_cache


def cache_folder() -> Path:
    """`user_cache`, absolute; created if missing. Raises `UsageError` if it cannot be written to."""
    folder = user_cache().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        raise UsageError(
            f"The cache folder {folder} cannot be written to.",
            "The Horovod wheel is built and kept there.",
            "set HVDTRAIN_CACHE_DIR to a folder of yours with 2 GB to spare.",
        )
    return folder


class WheelCache:
    """Wheels under `base`/wheels/KEY/, each with the recipe and the log of its build."""

    def __init__(self, base: Path) -> None:
        self._wheels = base / "wheels"
        self._wheels.mkdir(parents=True, exist_ok=True)

    def entry(self, key: str) -> Path:
        """The folder of the wheel with that key; there only once the wheel is complete."""
        return self._wheels / key

    def find(self, key: str) -> Path | None:
        """The wheel, if it is there and undamaged. A damaged entry is removed, so that it is built again."""
        wheel = next(iter(sorted(self.entry(key).glob("*.whl"))), None)
        if wheel is not None and _is_intact(wheel):
            return wheel
        shutil.rmtree(self.entry(key), ignore_errors=True)
        return None

    @contextmanager
    def building(self, key: str) -> Iterator[Path]:
        """An empty folder to build in, which becomes the entry in one rename when the block ends without an error. What
        a killed build left is removed first. Only for the holder of `locked(key)`."""
        folder = self._wheels / f".building-{key}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
            os.replace(folder, self.entry(key))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def locked(self, key: str, seconds: float, waiting: str = "") -> Iterator[None]:
        """Holds the key's lock, which the operating system frees when its holder dies. The line `waiting` is printed
        once if there is another holder. Raises HvdtrainError: it still held the lock after `seconds`."""
        with open(self._wheels / f"{key}.lock", "w", encoding="utf-8") as file:
            lock_within(file.fileno(), seconds, waiting)
            yield


def lock_within(descriptor: int, seconds: float, waiting: str) -> None:
    """Takes an exclusive `flock` on an open file; `HvdtrainError` if that takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() > deadline:
            raise HvdtrainError(
                f"Another set-up has held the lock for more than {seconds:.0f} s.",
                "Two at once would disturb each other.",
                "wait for the other one to end, or end it, then run `make setup` again.",
            )
        if waiting:
            print(waiting, flush=True)
            waiting = ""
        time.sleep(min(0.1, seconds))


def _is_intact(wheel: Path) -> bool:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False
