"""One data file as it was when it was indexed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self

from data_sharding.errors import ChangedDataError
from data_sharding.storage.redaction import redacted


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Absolute path or URL, size in bytes, and what changes when its content does.

    Attributes:
        version: modification time in nanoseconds of a local file, the ETag or modification time of a remote one.
    """

    path: str
    size: int
    version: str

    @classmethod
    def of(cls, path: str) -> Self:
        """Describe the local file as it is now.

        Raises:
            OSError: it cannot be reached.
        """
        return cls.from_status(path, os.stat(path))

    @classmethod
    def from_status(cls, path: str, status: os.stat_result) -> Self:
        """What `status` says of the local file `path`."""
        return cls(path, status.st_size, str(status.st_mtime_ns))

    def verify_same(self, now: FileEntry) -> None:
        """Compare with the file as it is now.

        Raises:
            ChangedDataError: it has another size or version.
        """
        if now.size != self.size:
            raise self.changed(f"had {self.size} bytes when it was indexed and has {now.size} now")
        if now.version != self.version:
            raise self.changed("was modified after it was indexed")

    def changed(self, how: str) -> ChangedDataError:
        """The error that says so."""
        return ChangedDataError(
            f"{redacted(self.path)} {how}.",
            "The catalog no longer describes the data.",
            "restore the file, or index the data again.",
        )
