"""Write TFRecord files, whole or not at all."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from data_sharding.atomic import atomic_file
from data_sharding.checks import whole
from data_sharding.errors import PlanError
from data_sharding.formats.tfrecord_framing import FOOTER, HEADER, length_crc, masked_crc


class TFRecordWriter:
    """Context manager that writes one TFRecord file.

    The file gets its name when the block ends well; an exception leaves neither it nor a temporary file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._stack = contextlib.ExitStack()
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        self._file = self._stack.enter_context(atomic_file(self.path))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file = None
        self._stack.__exit__(kind, error, traceback)

    def write(self, data: bytes) -> None:
        """Append one record.

        Raises:
            PlanError: called outside the `with` block.
        """
        if self._file is None:
            raise PlanError(
                f"The writer of {self.path} is not open.",
                "Records can only be written between its opening and its closing.",
                "write inside `with TFRecordWriter(path) as writer:`.",
            )
        # All computed before the first byte is written: a value that is no bytes must not leave half a record.
        header, footer = HEADER.pack(len(data), length_crc(len(data))), FOOTER.pack(masked_crc(data))
        self._file.write(header)
        self._file.write(data)
        self._file.write(footer)


def write_shards(pattern_dir: str | Path, name: str, records: Iterable[bytes], num_shards: int) -> list[Path]:
    """Deal `records` round-robin over `num_shards` files: record i goes to file i mod num_shards.

    Files are named `<name>-00000-of-00004.tfrecord` and so on; their record counts differ by at most one. One pass
    over `records`, which may be a generator; its exception, like any other, leaves no file behind. The folder is made.

    Returns:
        The paths, in order.

    Raises:
        PlanError: num_shards < 1, fewer records than files, or the folder holds a set of the same name in another
            number of files, which would later be read together with this one.
    """
    folder, num_shards = Path(pattern_dir), whole("num_shards", num_shards)
    paths = [folder / f"{name}-{part:05d}-of-{num_shards:05d}.tfrecord" for part in range(num_shards)]
    _check_shard_request(folder, name, paths)
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(TFRecordWriter(path)) for path in paths]
        count = 0
        for record in records:
            writers[count % num_shards].write(record)
            count += 1
        if count < num_shards:
            raise PlanError(
                f"{count} records were to be distributed over {num_shards} files.",
                "Some files would be empty.",
                f"ask for at most {max(count, 1)} files.",
            )
    return paths


def _check_shard_request(folder: Path, name: str, paths: list[Path]) -> None:
    if not paths:
        raise PlanError("Fewer than 1 file was asked for.", "Records need a file to go to.", "ask for 1 file or more.")
    stale = sorted(set(folder.glob(f"{glob.escape(name)}-?????-of-?????.tfrecord")) - set(paths))
    if stale:
        raise PlanError(
            f"{folder} already holds {stale[0].name}, of a set written in another number of files.",
            f"Readers of the folder would get the records of both sets of '{name}'.",
            "remove the old files, or choose another folder or name.",
        )
