"""Write files of records: TFRecord, RecordIO and tar shards, each whole or not at all."""

import contextlib
import glob
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

from data_sharding.atomic import atomic_file
from data_sharding.checks import one_of, whole
from data_sharding.errors import PlanError
from data_sharding.formats.recordio import LENGTH_MASK, Multipart, framed
from data_sharding.formats.tar_members import padded, split_name
from data_sharding.formats.tfrecord import FOOTER, HEADER, length_crc, masked_crc
from data_sharding.storage.mapped_file import OUT_OF_DESCRIPTORS, out_of_descriptors


class _Writer:
    """Context manager that writes one file, which gets its name when the block ends well, or is not left."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._stack = contextlib.ExitStack()
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        self._file = self._stack.enter_context(atomic_file(self.path))
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: Any) -> None:
        if self._file is not None and kind is None:
            self._finish(self._file)
        self._file = None
        self._stack.__exit__(kind, *exception)

    def _finish(self, file: BinaryIO) -> None:
        """Write what follows the last record."""

    def _open_file(self) -> BinaryIO:
        if self._file is None:
            fact = f"The writer of {self.path} is not open."
            conflict = "Records can only be written between its opening and its closing."
            raise PlanError(fact, conflict, f"write inside `with {type(self).__name__}(path) as writer:`.")
        return self._file


class TFRecordWriter(_Writer):
    """Context manager that writes one TFRecord file, which gets its name when the block ends well, or is not left."""

    def write(self, data: bytes) -> None:
        """Append one record. Raises PlanError (called outside the `with` block)."""
        file = self._open_file()
        # All computed before the first byte is written: a value that is not bytes must not leave half a record.
        header, footer = HEADER.pack(len(data), length_crc(len(data))), FOOTER.pack(masked_crc(data))
        file.write(header)
        file.write(data)
        file.write(footer)


class RecordIOWriter(_Writer):
    """Context manager that writes one RecordIO file, which gets its name when the block ends well, or is not left.

    With `multipart` "dmlc" payloads are split at aligned magic numbers, as dmlc and MXNet do; with "sagemaker" each is
    one part, as in SageMaker's SDK.
    """

    def __init__(self, path: str | Path, multipart: Multipart = "dmlc") -> None:
        one_of("multipart", multipart, Multipart)
        super().__init__(path)
        self._multipart = multipart

    def write(self, data: bytes) -> None:
        """Append one record.

        Raises PlanError (called outside the `with` block, or 2**29 bytes or more, which the format cannot hold).
        """
        file = self._open_file()
        if len(data) > LENGTH_MASK:
            fact = f"A record of {len(data)} bytes was to be written to {self.path}."
            conflict = f"A RecordIO record holds at most {LENGTH_MASK} bytes."
            raise PlanError(fact, conflict, "write it to a TFRecord file instead.")
        file.write(framed(data, self._multipart))


class TarWriter(_Writer):
    """Context manager that writes one tar shard, which gets its name when the block ends well, or is not left.

    Equal samples give equal files: no times, owners or modes of this machine go in.
    """

    _last_key: str | None = None

    def write(self, key: str, members: Mapping[str, bytes]) -> None:
        """Append one sample: a member named `<key>.<extension>` for each extension.

        Raises:
            PlanError: called outside the `with` block, no members, the key of the sample before, or a key or extension
                that a reader would not find again (a dot in the key's last part, upper case in an extension, `..`).
        """
        file = self._open_file()
        self._check(key, members)
        for extension, content in members.items():
            header = tarfile.TarInfo(f"{key}.{extension}")
            header.size = len(content)
            file.write(header.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
            file.write(content)
            file.write(bytes(padded(len(content)) - len(content)))
        self._last_key = key

    def _finish(self, file: BinaryIO) -> None:
        end = file.tell() + 2 * tarfile.BLOCKSIZE
        file.write(bytes(2 * tarfile.BLOCKSIZE + -end % tarfile.RECORDSIZE))

    def _check(self, key: str, members: Mapping[str, bytes]) -> None:
        if not members:
            raise PlanError(
                f"Sample {key!r} has no members.", "It would leave no trace in an archive.", "give it one member."
            )
        if key == self._last_key:
            fact = f"Two samples in a row have the key {key!r}."
            raise PlanError(fact, "In an archive they would become one.", "give each its own key.")
        for extension in members:
            name = f"{key}.{extension}"
            is_unsafe = name.startswith("/") or ".." in name.split("/") or "\0" in name
            if is_unsafe or split_name(name) != (key, extension):
                raise PlanError(
                    f"A member was to be named {name!r}.",
                    f"A reader of the archive would not find key {key!r} and extension {extension!r} in it.",
                    "use keys without a dot in the last part, or a folder like __this__, and extensions in lower case.",
                )


def shard_names(name: str, num_shards: int, suffix: str) -> list[str]:
    """`<name>-00000-of-00004.tar` and so on."""
    return [f"{name}-{part:05d}-of-{num_shards:05d}{suffix}" for part in range(num_shards)]


def too_few(records: int, files: int) -> PlanError:
    fact = f"{records} records were to be distributed over {files} files."
    return PlanError(fact, "Some files would be empty.", f"ask for at most {max(records, 1)} files.")


def write_shards(pattern_dir: str | Path, name: str, records: Iterable[bytes], num_shards: int) -> list[Path]:
    """Distribute `records`, which may be a generator, round-robin: record i goes to file i mod num_shards.

    Returns the files' paths in order: `<name>-00000-of-00004.tfrecord` and so on. An exception, also of the generator,
    leaves none of them behind. The folder is made.

    Raises:
        PlanError: num_shards < 1, fewer records than files, or the folder holds a set of the same name in another
            number of files, which would later be read together with this one.
        OpenFilesLimitError: all files are open at the same time, and the process may not open so many.
    """
    folder, num_shards = Path(pattern_dir), whole("num_shards", num_shards)
    paths = [folder / file for file in shard_names(name, num_shards, ".tfrecord")]
    if not paths:
        raise PlanError("Fewer than 1 file was asked for.", "Records need a file to go to.", "ask for 1 file or more.")
    stale = sorted(set(folder.glob(f"{glob.escape(name)}-?????-of-?????.tfrecord")) - set(paths))
    if stale:
        fact = f"{folder} already holds {stale[0].name}, of a set written in another number of files."
        conflict = f"Readers of the folder would get the records of both sets of '{name}'."
        raise PlanError(fact, conflict, "remove the old files, or choose another folder or name.")
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            writers = [stack.enter_context(TFRecordWriter(path)) for path in paths]
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS:
                raise
            raise out_of_descriptors(f"{num_shards} files are to be written at the same time") from error
        count = 0
        for record in records:
            writers[count % num_shards].write(record)
            count += 1
        if count < num_shards:
            raise too_few(count, num_shards)
    return paths
