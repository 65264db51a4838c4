"""A folder of copies of remote files on a local disk, shared by all processes of a host.

    data_sharding-cache   says that the folder is one, and of which layout
    files/KEY             a whole file, or what was decoded of one; KEY is a hash of its URL, size and version
    files/KEY.json        what it is a copy of, its CRC-32C and times; touched by each use
    files/KEY.part        a copy that is being made; its process holds a lock
    sessions/NAME         one for each process that uses the folder, locked for as long as it lives
    locks/, used          locks of copies in the making, and bytes that are taken or promised

A killed process leaves locks that are free and a part that the next one overwrites. What was used since the oldest
living session began is never removed: files that do not fit beside it are read from the store instead, because data
larger than its cache would otherwise be fetched again and again.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import filelock

from data_sharding.atomic import atomic_file, sync_folder
from data_sharding.errors import CacheError
from data_sharding.storage import cache_note
from data_sharding.storage.cache_sessions import Session, oldest_begin
from data_sharding.storage.file_entry import FileEntry, is_data
from data_sharding.storage.redaction import redacted

_MARK: Final = "data_sharding-cache"
_LAYOUT: Final = "data_sharding cache 1\n"
_LOCKS: Final = 256
_LOCK_SECONDS: Final = 600.0
_SPARE_SHARE, _SPARE_BYTES = 0.05, 2**30
"""Of the disk this much is left free for others: the lesser of the two."""

_log = logging.getLogger(__name__)


class _Copy(NamedTuple):
    path: Path
    size: int
    used: float  # when a process began to use it last; infinity: it is in the making


class CacheFolder:
    """The folder as one process uses it. Raises CacheError: it cannot be used.

    Args: `limit`: bytes that all copies together may take; None: what the disk has, but for a reserve.
    """

    def __init__(self, folder: str | Path, limit: int | None) -> None:
        self.folder, self.limit = Path(folder), limit
        self._files, self._sessions = self.folder / "files", self.folder / "sessions"
        self._refused: set[FileEntry] = set()
        self._compared: set[tuple[FileEntry, tuple[int, ...]]] = set()  # copies that something has touched, and sound
        self._comparing = threading.Lock()
        self._changed: set[FileEntry] = set()  # whose copies were removed, as they had been changed
        try:
            self._make()
            self._session = Session(self._sessions)
            with self._admission():
                self._count()
        except OSError as error:
            raise _unusable(self.folder, error) from error
        self._require_room()

    def place(self, entry: FileEntry) -> Path:
        """Where the copy of a file is, or would be."""
        identity = json.dumps([entry.path, entry.size, entry.version])
        return self._files / hashlib.sha256(identity.encode()).hexdigest()[:32]

    def find(self, entry: FileEntry) -> FileEntry | None:
        """The copy of a file, as it was made; None if there is none. One that was changed is removed."""
        place = self.place(entry)
        try:
            status = os.stat(place)
            if not self._is_as_made(entry, status):
                self._remove_changed(entry, status)
                raise ValueError("it was changed")
            os.utime(cache_note.path_of(place))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            if entry not in self._refused:  # it may be looked for in each step
                self._refused.add(entry)
                _log.warning("the copy %s of %s cannot be used: %s", place, redacted(entry.path), error)
            return None
        return FileEntry.from_status(str(place), status)

    def take_changed(self, entry: FileEntry) -> bool:
        """Whether `find` has removed a changed copy since the last call."""
        was_changed = entry in self._changed
        self._changed.discard(entry)
        return was_changed

    def _is_as_made(self, entry: FileEntry, status: os.stat_result) -> bool:
        """Whether nothing has touched a copy since it was made; one that was touched is compared with its checksum.

        Who writes to a file can put its modification time back, but not the time of its status.
        """
        place, times = self.place(entry), cache_note.times(status)
        if times == cache_note.noted_times(place):
            return True
        with self._comparing:
            if (entry, times) in self._compared:
                return True
            if sound := cache_note.holds(place):
                self._compared.add((entry, times))
                with contextlib.suppress(OSError):  # somebody else's: each process compares it once
                    cache_note.renew(place, status)
        return sound

    def _remove_changed(self, entry: FileEntry, seen: os.stat_result) -> None:
        """Unless another process has made it anew meanwhile."""
        place = self.place(entry)
        with contextlib.suppress(OSError), self._admission():
            now = os.stat(place)
            if (now.st_ino, cache_note.times(now)) == (seen.st_ino, cache_note.times(seen)):
                cache_note.unlink_both(place)
                self._changed.add(entry)
                self._count()

    def is_sound(self, entry: FileEntry) -> bool:
        """Whether the content of a copy still is what came; it is read in full."""
        return cache_note.is_sound(self.place(entry))

    def remove(self, entry: FileEntry) -> None:
        """Remove a copy, if there is one. Processes that have mapped it keep what they have."""
        with contextlib.suppress(OSError), self._admission():
            cache_note.unlink_both(self.place(entry))
            self._count()

    def making(self, entry: FileEntry, wait: bool) -> filelock.BaseFileLock:
        """The lock, to be entered, of whoever makes the copy. Raises filelock.Timeout: another process has it."""
        return self._lock(self.place(entry), wait)

    def _lock(self, place: Path, wait: bool) -> filelock.BaseFileLock:
        number = int(place.name[:8], 16) % _LOCKS
        return filelock.FileLock(self.folder / "locks" / f"{number:02x}", timeout=_LOCK_SECONDS if wait else 0)

    def admit(self, entry: FileEntry, size: int) -> bool:
        """Promise room for a copy of `size` bytes, for which others may be removed; False: there is none.

        Its part has that size from then on, so that whoever counts the bytes of all copies counts the promise.
        """
        with self._admission():
            if self._lacking(size, self._read_used()) > 0 and not self._evict(size):
                return False
            with open(self._part(entry), "wb") as file:
                file.truncate(size)
            self._write_used(self._read_used() + size)
        return True

    def forget_part(self, entry: FileEntry) -> None:
        """Remove what a killed process has left of a copy, which may lack its note only. For whoever holds its lock."""
        place = self.place(entry)
        if place.exists() and not cache_note.path_of(place).exists():
            self.remove(entry)
        if self._part(entry).exists():
            self.give_up(entry)

    def give_up(self, entry: FileEntry) -> None:
        """Undo `admit` for a copy that was not made."""
        part = self._part(entry)
        with contextlib.suppress(OSError), self._admission():
            part.unlink(missing_ok=True)
            self._count()

    @contextlib.contextmanager
    def part(self, entry: FileEntry, size: int) -> Iterator[Any]:
        """A file to write an admitted copy to, which has its room on the disk. Raises OSError (the disk is full)."""
        with open(self._part(entry), "r+b") as file:
            if size:
                os.posix_fallocate(file.fileno(), 0, size)
            yield file
            file.flush()
            os.fsync(file.fileno())

    def commit(self, entry: FileEntry, crc: int) -> None:
        """The part that was written is the copy from now on."""
        place = self.place(entry)
        os.replace(self._part(entry), place)
        sync_folder(self._files)
        cache_note.write(place, entry, crc)  # after the rename, which changes the time of the status

    def _part(self, entry: FileEntry) -> Path:
        return self.place(entry).with_suffix(".part")

    def _make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        mark = self.folder / _MARK
        if not mark.exists():
            if others := sorted(name for name in os.listdir(self.folder) if is_data(name) and name != _MARK):
                raise CacheError(
                    f"{self.folder} holds {others[0]}, and is not a cache of data_sharding.",
                    "A cache removes what was not used for longest, so its folder is to hold nothing else.",
                    f"name a new folder, such as {self.folder / 'cache'}.",
                )
            with atomic_file(mark) as file:
                file.write(_LAYOUT.encode())
        if (layout := mark.read_text(errors="replace")) != _LAYOUT:
            raise CacheError(
                f"{self.folder} says that it is {layout[:60].strip()!r}, and this version writes {_LAYOUT.strip()!r}.",
                "Neither would understand the other's files.",
                "name another folder, or remove this one.",
            )
        for folder in (self._files, self.folder / "locks"):
            folder.mkdir(exist_ok=True)

    def close(self) -> None:
        """End the use of the folder. May be called twice."""
        self._session.close()

    @contextlib.contextmanager
    def _admission(self) -> Iterator[None]:
        with filelock.FileLock(self.folder / "locks" / "admission", timeout=_LOCK_SECONDS):
            yield

    def _copies(self) -> list[_Copy]:
        copies = []
        for item in os.scandir(self._files):
            if not item.name.endswith((".json", ".tmp")):
                with contextlib.suppress(FileNotFoundError):
                    copies.append(_Copy(Path(item.path), item.stat().st_size, cache_note.last_use(Path(item.path))))
        return copies

    def _count(self) -> int:
        """Bytes of all copies, those in the making included, which is written down."""
        used = sum(copy.size for copy in self._copies())
        self._write_used(used)
        return used

    def _evict(self, size: int) -> bool:
        """Remove parts of killed processes, and copies that no living one has used, until `size` bytes have room; those
        used last go last. False: all of them would not do, and none is removed."""
        begin, lacking = oldest_begin(self._sessions), self._lacking(size, self._count())
        copies = self._copies()
        left = list(filter(self._is_left, copies))
        unused = sorted((copy for copy in copies if copy.used < begin), key=lambda copy: copy.used)
        if sum(copy.size for copy in [*left, *unused]) < lacking:
            return False
        for copy in [*left, *unused]:
            if lacking <= 0:
                break
            cache_note.unlink_both(copy.path)
            lacking -= copy.size
        return self._lacking(size, self._count()) <= 0

    def _lacking(self, size: int, used: int) -> int:
        """How many bytes are to be removed before `size` have room, beside `used` ones; none if it is not above 0."""
        return max(used + size - self._most(), size - self._free())

    def _is_left(self, copy: _Copy) -> bool:
        """Whether it is in the making, and nobody makes it, so that its lock is free."""
        if copy.used < float("inf"):
            return False
        try:
            with self._lock(copy.path, wait=False):
                return cache_note.last_use(copy.path) == float("inf")  # it may have been made meanwhile
        except filelock.Timeout:
            return False

    def _read_used(self) -> int:
        try:
            return int((self.folder / "used").read_text())
        except (OSError, ValueError):
            return self._count()

    def _write_used(self, used: int) -> None:
        (self.folder / "used").write_text(f"{used}\n")  # a torn one is counted again

    def _most(self) -> int:
        return 2**62 if self.limit is None else self.limit

    def _free(self) -> int:
        disk = shutil.disk_usage(self.folder)
        return disk.free - int(min(_SPARE_BYTES, _SPARE_SHARE * disk.total))

    def _require_room(self) -> None:
        if self.limit is not None and (room := self._free() + self._read_used()) < self.limit:
            self.close()
            raise CacheError(
                f"The disk of {self.folder} has room for {max(room, 0):,} bytes of copies.",
                f"The cache was allowed to take {self.limit:,}.",
                "free some space, name a folder on a larger disk, or allow less.",
            )


def _unusable(folder: Path, error: OSError) -> CacheError:
    fact = f"The cache {folder} cannot be used: {error.strerror or error}."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CacheError(fact, "Nothing can be kept on a full disk.", "free some space, or name another folder.")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "name a folder of your own, on a disk of this machine that you can write to."
        return CacheError(fact, "It belongs to somebody else, or its disk is read-only.", hint)
    return CacheError(fact, "Copies of the data are to be kept there.", "name a folder that can be made and written.")
