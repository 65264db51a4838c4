"""The files of a reader: some are read from the network first, and from the disk once there is a copy."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from data_sharding.errors import ChangedDataError
from data_sharding.storage import is_remote
from data_sharding.storage.byte_source import OpenFiles
from data_sharding.storage.file_cache import FileCache
from data_sharding.storage.file_entry import FileEntry
from data_sharding.storage.mapped_file import affordable


class Spans(Protocol):
    """What a reader needs of a file that is open."""

    def spans(self, begins: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        """As `ByteSource.spans`."""


class CachedFile:
    """A remote file that is read from its local copy as soon as there is one. Safe to use from many threads.

    Args: `waits`: whether a copy that comes soon is waited for.
    """

    def __init__(
        self,
        entry: FileEntry,
        opener: Callable[[FileEntry], Spans],
        cache: FileCache,
        waits: Callable[[], bool] = lambda: True,
    ) -> None:
        self._entry, self._opener, self._cache, self._waits = entry, opener, cache, waits
        self._local: Spans | None = None
        self._remote = functools.cache(functools.partial(opener, entry))

    @property
    def is_local(self) -> bool:
        """Whether reading waits for no network. If there is no copy, one is asked for."""
        if self._local is None and (copy := self._cache.ask(self._entry)) is not None:
            try:
                self._local = self._opener(copy)
            except ChangedDataError:  # it was removed meanwhile
                return False
        return self._local is not None

    def spans(self, begins: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        """As `ByteSource.spans`."""
        if self.is_local and (local := self._local) is not None:
            try:
                return local.spans(begins, ends)
            except ChangedDataError:  # it was cut short or removed
                self._local = None
                self._cache.forget_damaged(self._entry)
        elif self._waits() and (copy := self._cache.wait(self._entry)) is not None:
            with contextlib.suppress(ChangedDataError):
                self._local = self._opener(copy)
                return self._local.spans(begins, ends)
        return self._remote().spans(begins, ends)

    def give_up_copy(self) -> bool:
        """Stop using a copy that is damaged; False: there is none, or the file itself has that content."""
        if self._local is None or not self._cache.forget_damaged(self._entry):
            return False
        self._local = None
        return True


class ReaderFiles:
    """Files opened by `opener`, at most `max_open` at a time, and through a cache if there is one; see `OpenFiles`.

    Attributes: `is_first`: no batch was read yet; the first one waits for no copy.
    """

    is_first = True

    def __init__(
        self, files: Sequence[FileEntry], opener: Callable[[FileEntry], Any], max_open: int, cache: FileCache | None
    ) -> None:
        self._files, self.are_remote = files, any(is_remote(file.path) for file in files)
        self.cache = cache if self.are_remote else None

        def open_cached(entry: FileEntry) -> Any:
            through_cache = self.cache is not None and is_remote(entry.path)
            if not through_cache or self.cache is None:
                return opener(entry)
            return CachedFile(entry, opener, self.cache, lambda: not self.is_first)

        most = max_open if self.are_remote and self.cache is None else affordable(max_open)
        self._open = OpenFiles(files, open_cached, most)

    def get(self, file_id: int) -> Any:
        """A file, open; errors as `OpenFiles.get`."""
        return self._open.get(file_id)

    def wait_for_network(self, file_ids: Iterable[int]) -> bool:
        """Whether one of these has to be asked for by requests. Copies that are missing are asked for."""
        if self.cache is None:
            return self.are_remote
        opened = [self.get(int(file_id)) for file_id in file_ids]
        # Of a list: each of them is asked for.
        return not all([not isinstance(file, CachedFile) or file.is_local for file in opened])

    def all_are_here(self) -> bool:
        """Whether nothing has to be asked for by requests."""
        if self.cache is None:
            return not self.are_remote
        return all(not is_remote(file.path) or self.cache.find(file) is not None for file in self._files)

    def give_up_damaged_copies(self, file_ids: Iterable[int]) -> bool:
        """Whether one of these was read from a copy that is damaged, and will now be read from the store."""
        if self.cache is None:
            return False
        opened = [self.get(int(file_id)) for file_id in file_ids]
        return any([isinstance(file, CachedFile) and file.give_up_copy() for file in opened])

    def close(self) -> None:
        """Give up all files. May be called twice."""
        self._open.close()
