"""One data file as it was when it was indexed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self

from data_sharding.errors import ChangedDataError


@dataclass(frozen=True)
class FileEntry:
    """Absolute path, size in bytes, and modification time in nanoseconds."""

    path: str
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: str) -> Self:
        """Describe the file as it is now.

        Raises:
            OSError: it cannot be reached.
        """
        status = os.stat(path)
        return cls(path, status.st_size, status.st_mtime_ns)

    def verify_unchanged(self) -> None:
        """Compare with the file as it is now.

        Raises:
            ChangedDataError: it has gone, or has another size or modification time.
        """
        try:
            now = FileEntry.of(self.path)
        except OSError as error:
            raise self.changed(f"cannot be reached: {error.strerror}") from error
        if now.size != self.size:
            raise self.changed(f"had {self.size} bytes when it was indexed and has {now.size} now")
        if now.mtime_ns != self.mtime_ns:
            raise self.changed("was modified after it was indexed")

    def changed(self, how: str) -> ChangedDataError:
        """The error that says so."""
        return ChangedDataError(
            f"{self.path} {how}.",
            "The catalog no longer describes the data.",
            "restore the file, or index the data again.",
        )
