"""One data file as it was when it was indexed, which names a pattern means, and the errors for patterns without any."""

import fnmatch
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from data_sharding.errors import ChangedDataError, MissingDataError
from data_sharding.storage.redaction import redacted

_OF_THE_SYSTEM: Final = frozenset(
    {
        *("__macosx", "__pycache__", "lost+found"),  # fsck's lost+found may be read by root only
        *("@eadir", "#recycle", "#snapshot"),  # Synology
        *("@recycle", "@recently-snapshot"),  # QNAP
        "~snapshot",  # NetApp
        *("$recycle.bin", "system volume information", "thumbs.db", "ehthumbs.db", "desktop.ini"),  # Windows
    }
)
"""Names, in lower case, of folders and files that operating systems and storage devices put beside people's data."""


INDEX_NAME: Final = "data_sharding.index"
"""What an index that was published beside data files is called."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Absolute path or URL, size in bytes, and what changes when its content does."""

    path: str
    size: int
    version: str  # modification time in nanoseconds of a local file, the ETag or modification time of a remote one

    LINK_TO_NOTHING: ClassVar[str] = "a link to nothing"
    """The version of a local link that leads to no file; its size is 0."""

    @classmethod
    def from_status(cls, path: str, status: os.stat_result) -> Self:
        """What `status` says of the local file `path`."""
        return cls(path, status.st_size, str(status.st_mtime_ns))

    def no_content(self) -> MissingDataError:
        """The error for a file of 0 bytes."""
        if self.version == self.LINK_TO_NOTHING:
            fact = f"{redacted(self.path)} is a link to nothing."
            conflict = "Its name says that it holds records."
            return MissingDataError(fact, conflict, "mend or remove it, or name the others.")
        return MissingDataError(
            f"{redacted(self.path)} is empty.",
            "A data file without a record is most often one whose writing was cut short.",
            "write it again, or remove it.",
        )

    def verify_same(self, now: "FileEntry") -> None:
        """Compare with the file as it is now. Raises ChangedDataError (it has another size or version)."""
        if now.size != self.size:
            raise self.changed(f"had {self.size} bytes when it was indexed and has {now.size} now")
        if now.version != self.version:
            raise self.changed("was modified after it was indexed")

    def changed(self, how: str) -> ChangedDataError:
        """The error that says so."""
        fact = f"{redacted(self.path)} {how}."
        conflict = "The catalog no longer describes the data."
        return ChangedDataError(fact, conflict, "restore the file, or index the data again.")


def is_data(name: str) -> bool:
    """Whether a folder or file of that name can hold data: it is not hidden, the operating system's, or an index."""
    return not name.startswith(".") and name != INDEX_NAME and name.lower() not in _OF_THE_SYSTEM


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Whether the base name of `path` matches one of the patterns, in any case. Hidden files never do."""
    name = path.rpartition("/")[2]
    return is_data(name) and any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in patterns)


def no_such_files(folder: str, patterns: tuple[str, ...], names: Iterable[str]) -> MissingDataError:
    """`names`: of the files that the folder holds."""
    there = sorted(filter(is_data, names))
    more = f" and {len(there) - 3} more" if len(there) > 3 else ""
    return MissingDataError(
        f"Folder {redacted(folder)} holds no file named {' or '.join(patterns)}.",
        f"Its files are {', '.join(there[:3])}{more}." if there else "There is nothing to read.",
        "name another folder, the format, or a glob if the files are named otherwise; compressed files are expanded "
        "first; what another library reads item by item, as ArrayRecord, is given to Catalog.of or data.dataset.",
    )


def no_match(path: str) -> MissingDataError:
    return MissingDataError(
        f"No file matches {redacted(path)}.",
        "There is nothing to read.",
        "check the pattern, and quote it for the shell; a [ in a name is written [[].",
    )
