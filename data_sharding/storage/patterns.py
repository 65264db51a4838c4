"""Which names of files a pattern means, and the errors for patterns that mean none."""

from __future__ import annotations

import fnmatch

from data_sharding.errors import MissingDataError
from data_sharding.storage.redaction import redacted


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Whether the base name of `path` matches one of the patterns, in any case. Hidden files never do."""
    name = path.rpartition("/")[2].lower()
    return not name.startswith(".") and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def no_such_files(folder: str, patterns: tuple[str, ...]) -> MissingDataError:
    """The error for a folder without data files."""
    return MissingDataError(
        f"Folder {redacted(folder)} holds no file named {' or '.join(patterns)}.",
        "There is nothing to read.",
        "name another folder, the format, or a glob if the files are named otherwise; .gz files are expanded first.",
    )


def no_match(path: str) -> MissingDataError:
    """The error for a glob without a match."""
    return MissingDataError(
        f"No file matches {redacted(path)}.",
        "There is nothing to read.",
        "check the pattern, and quote it for the shell; a [ in a name is written [[].",
    )
