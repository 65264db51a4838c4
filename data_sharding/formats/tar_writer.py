"""Write tar shards, whole or not at all."""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from data_sharding.atomic import atomic_file
from data_sharding.errors import PlanError
from data_sharding.formats.tar_headers import padded
from data_sharding.formats.tar_sample import split_name


class TarWriter:
    """Context manager that writes one tar shard, sample by sample.

    Equal samples give equal files: no times, owners or modes of this machine go in. The file gets its name when the
    block ends well; an exception leaves neither it nor a temporary file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._stack = contextlib.ExitStack()
        self._file: BinaryIO | None = None
        self._last_key: str | None = None

    def __enter__(self) -> Self:
        self._file = self._stack.enter_context(atomic_file(self.path))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None and kind is None:
            position = self._file.tell()
            whole = -(-(position + 2 * tarfile.BLOCKSIZE) // tarfile.RECORDSIZE) * tarfile.RECORDSIZE
            self._file.write(bytes(whole - position))
        self._file = None
        self._stack.__exit__(kind, error, traceback)

    def write(self, key: str, members: Mapping[str, bytes]) -> None:
        """Append one sample: a member named `<key>.<extension>` for each extension.

        Raises:
            PlanError: called outside the `with` block, no members, the key of the sample before, or a key or extension
                that a reader would not find again (a dot in the key's last part, upper case in an extension, `..`).
        """
        if self._file is None:
            raise PlanError(
                f"The writer of {self.path} is not open.",
                "Samples can only be written between its opening and its closing.",
                "write inside `with TarWriter(path) as writer:`.",
            )
        self._check(key, members)
        for extension, content in members.items():
            header = tarfile.TarInfo(f"{key}.{extension}")
            header.size = len(content)
            self._file.write(header.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
            self._file.write(content)
            self._file.write(bytes(padded(len(content)) - len(content)))
        self._last_key = key

    def _check(self, key: str, members: Mapping[str, bytes]) -> None:
        if not members:
            raise PlanError(
                f"Sample {key!r} has no members.", "It would leave no trace in an archive.", "give it one member."
            )
        if key == self._last_key:
            raise PlanError(
                f"Two samples in a row have the key {key!r}.",
                "In an archive they would become one.",
                "give each its own key.",
            )
        for extension in members:
            name = f"{key}.{extension}"
            if split_name(name) != (key, extension) or name.startswith("/") or not _is_plain(name):
                raise PlanError(
                    f"A member was to be named {name!r}.",
                    f"A reader of the archive would not find key {key!r} and extension {extension!r} in it.",
                    "use keys without a dot in the last part, and extensions in lower case.",
                )


def _is_plain(name: str) -> bool:
    return ".." not in name.split("/") and "\0" not in name
