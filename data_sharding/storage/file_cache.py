"""Copies of remote files on this host: asked for by whoever reads, made once, in the background or at once."""

import functools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import filelock
import google_crc32c

from data_sharding.errors import ShardingError
from data_sharding.storage import is_remote, open_source, verify_read
from data_sharding.storage.byte_ranges import split
from data_sharding.storage.byte_source import for_files
from data_sharding.storage.cache_folder import CacheFolder
from data_sharding.storage.file_entry import FileEntry
from data_sharding.storage.redaction import redacted

_STREAMS: Final = 4
"""Files that a process fetches at a time."""

_CHUNK: Final = 4 << 20
SOON_SECONDS: Final = 15.0
"""If all copies that were asked for will be there by then, they are waited for: single records cost more requests."""

_AT_ONCE_SECONDS, _PATIENCE_SECONDS = 0.1, 3.0
"""The first step comes by requests; others wait until it is known how fast copies come, for that is not seen beside
many requests."""

_SILENT_SECONDS: Final = 10.0
"""Before it is said for whom a process waits."""

_PAUSE_SECONDS: Final = 0.05
"""Between two looks at files that other processes are fetching."""

_log = logging.getLogger(__name__)


class FileCache:
    """Whole remote files in `folder`, one copy for all processes of a host; at most `limit` bytes, None for the disk's.

    The folder is opened by the first use, or by `open`, which raises CacheError. A pickled copy, and a process that was
    forked, use the same folder.
    """

    def __init__(self, folder: str | Path, limit: int | None = None) -> None:
        self.folder, self.limit = os.path.abspath(folder), limit
        self._forget()

    def _forget(self) -> None:
        self._opened: CacheFolder | None = None
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._asked: set[FileEntry] = set()
        self._queue: deque[FileEntry] = deque()
        self._threads = 0
        self._changed = threading.Condition(self._lock)
        self._missing: dict[FileEntry, int] = {}  # asked for, and neither there nor given up: bytes that are to come
        self._bytes, self._begin = 0, 0.0  # what has come of them, and since when
        self._said: set[str] = set()  # hints

    def __reduce__(self) -> tuple[Any, ...]:
        return FileCache, (self.folder, self.limit)

    def open(self) -> CacheFolder:
        """The folder, ready for use. Raises CacheError: it is full, somebody else's, or holds something else."""
        if self._process != os.getpid():  # a thread of the parent may have held the lock
            self._forget()
        with self._lock:
            if self._opened is None:
                self._opened = CacheFolder(self.folder, self.limit)
            return self._opened

    def find(self, entry: FileEntry) -> FileEntry | None:
        """The local copy of a remote file, if there is one. Of a file without a version none can be trusted later."""
        return self.open().find(entry) if entry.version else None

    def ask(self, entry: FileEntry) -> FileEntry | None:
        """The local copy; None while there is none: it is then made in the background, if there is room."""
        copy = self.find(entry)
        if copy is None:
            was_changed = self.open().take_changed(entry)
            with self._lock:
                if was_changed or entry not in self._asked:
                    self._asked.add(entry)
                    self._queue.append(entry)
                    if not self._missing:
                        self._bytes, self._begin = 0, time.monotonic()
                    self._missing[entry] = entry.size
                    if self._threads < _STREAMS:
                        self._threads += 1
                        threading.Thread(target=self._work, name="data_sharding-cache", daemon=True).start()
        return copy

    def wait(self, entry: FileEntry) -> FileEntry | None:
        """The copy of a file that was asked for, once it is there; None if it and the others will not be soon."""
        deadline = time.monotonic() + 2 * SOON_SECONDS
        with self._changed:
            while entry in self._missing and self._is_soon() and time.monotonic() < deadline:
                self._changed.wait(1.0)
            if entry in self._missing:
                return None
        return self.find(entry)

    def _is_soon(self) -> bool:
        """Whether all that is missing comes soon, as fast as it came so far."""
        seconds = max(time.monotonic() - self._begin, 1e-3)
        if not self._bytes:
            return _AT_ONCE_SECONDS < seconds < _PATIENCE_SECONDS
        rate = self._bytes / seconds
        return sum(self._missing.values()) < rate * SOON_SECONDS

    def _came(self, entry: FileEntry, size: int) -> None:
        with self._changed:
            self._bytes += size
            if entry in self._missing:
                self._missing[entry] -= size
            self._changed.notify_all()

    def fetch(self, entry: FileEntry, wait: bool = True) -> FileEntry | None:
        """The local copy, made now if there is none; None: there can be none, which a warning explains.

        Raises filelock.Timeout (another process is making it, and `wait` is false); ChangedDataError or
        MissingDataError (it cannot be read).
        """
        came = functools.partial(self._came, entry)
        return self._kept(entry, entry.size, lambda folder: _copied(entry, folder, came), wait)

    def keep(self, entry: FileEntry, content: Any) -> FileEntry | None:
        """Keep bytes that were made of a file, by a name that tells of what; None: there is no room for them.

        Raises filelock.Timeout: another process is doing that.
        """

        def write(folder: CacheFolder) -> int:
            with folder.part(entry, len(content)) as file:
                file.write(content)
            return int(google_crc32c.extend(0, bytes(content)))

        return self._kept(entry, len(content), write, wait=False)

    def _kept(self, entry: FileEntry, size: int, write: Callable[[CacheFolder], int], wait: bool) -> FileEntry | None:
        """The local copy, whose part is written, if there is none, by what returns its CRC-32C."""
        folder = self.open()
        if not entry.version:
            fact = f"the server of {redacted(entry.path)} sends neither an ETag nor a modification time"
            self._say_once(fact, "serve the data from where changes can be told, or copy them to this machine")
            return None
        try:
            with _acquired(folder.making(entry, wait), entry, wait):
                return folder.find(entry) or self._made(folder, entry, size, write)
        except filelock.Timeout as error:
            if not wait:
                raise
            _log.warning("%s is read from the store: %s is still locked", redacted(entry.path), error.lock_file)
        except OSError as error:
            hint = "see whether the folder can be written, and its disk has room"
            self._say_once(f"{redacted(entry.path)} cannot be kept in {self.folder}: {error.strerror}", hint)
        return None

    def _made(
        self, folder: CacheFolder, entry: FileEntry, size: int, write: Callable[[CacheFolder], int]
    ) -> FileEntry | None:
        """A new copy; None: there is no room. For whoever holds its lock, so that a part is a killed process's."""
        folder.forget_part(entry)
        copy = None
        try:
            if folder.admit(entry, size):
                folder.commit(entry, write(folder))
                copy = folder.find(entry)
            else:
                fact = f"the cache {self.folder} has no room for {redacted(entry.path)} beside what is in use"
                self._say_once(fact, "allow a larger cache")
        finally:
            if copy is None:
                folder.give_up(entry)
        return copy

    def fetch_all(self, files: Iterable[FileEntry]) -> None:
        """Make the copies of those that are remote, several at a time. Raises as `fetch`."""
        for_files(self.fetch, [entry for entry in files if is_remote(entry.path)], _STREAMS)

    def forget_damaged(self, entry: FileEntry) -> bool:
        """Whether the copy of a file is damaged or gone; it is removed then, and the file can be asked for again."""
        if self.find(entry) is not None and self.open().is_sound(entry):
            return False
        self.open().remove(entry)
        _log.warning("the copy of %s in %s was damaged, and is made again", redacted(entry.path), self.folder)
        with self._lock:
            self._asked.discard(entry)
        return True

    def close(self) -> None:
        """Make no more copies, and end the use of the folder. May be called twice."""
        with self._lock:
            self._queue.clear()
            self._missing.clear()
            self._changed.notify_all()
            if self._opened is not None and self._process == os.getpid():
                self._opened.close()
            self._opened = None

    def _work(self) -> None:
        while (entry := self._next()) is not None:
            try:
                self.fetch(entry, wait=False)
            except filelock.Timeout:
                time.sleep(_PAUSE_SECONDS)
                with self._lock:
                    self._queue.append(entry)
            except (ShardingError, OSError) as error:
                # Whoever reads the file asks the store itself, and raises what is wrong there.
                _log.info("%s is not kept: %s", redacted(entry.path), error)
                self._done(entry)
            else:
                self._done(entry)

    def _done(self, entry: FileEntry) -> None:
        with self._changed:
            self._missing.pop(entry, None)
            self._changed.notify_all()

    def _next(self) -> FileEntry | None:
        with self._lock:
            if not self._queue:
                self._threads -= 1
                return None
            return self._queue.popleft()

    def _say_once(self, fact: str, hint: str) -> None:
        with self._lock:
            is_new = hint not in self._said
            self._said.add(hint)
        if is_new:
            _log.warning("%s; what is not kept is read, or decoded, each time. HINT: %s.", fact, hint)


def _acquired(lock: filelock.BaseFileLock, entry: FileEntry, wait: bool) -> AbstractContextManager[Any]:
    """The lock, held; says soon for what it waits. Raises filelock.Timeout."""
    try:
        return lock.acquire(timeout=_SILENT_SECONDS if wait else 0)
    except filelock.Timeout:
        if not wait:
            raise
    _log.warning("waiting for another process that fetches %s; its lock is %s", redacted(entry.path), lock.lock_file)
    return lock.acquire()


def _copied(entry: FileEntry, folder: CacheFolder, came: Callable[[int], None]) -> int:
    """Write a whole file into its part, and tell `came` of each piece; returns its CRC-32C."""
    source, crc = open_source(entry), 0
    with folder.part(entry, entry.size) as file:
        for begin, end in split(0, entry.size, _CHUNK):
            (chunk,) = source.spans([begin], [end])
            file.write(chunk)
            crc = int(google_crc32c.extend(crc, chunk))
            came(len(chunk))
    verify_read(entry)
    return crc
