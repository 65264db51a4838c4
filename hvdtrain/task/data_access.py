"""What a task is given to find its records."""

import glob
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from data_sharding import Catalog, RecordFormat
from data_sharding.catalog.cache import open_catalog
from data_sharding.reading.record_table import OnCorrupt
from data_sharding.storage import is_remote
from data_sharding.storage.file_cache import FileCache
from hvdtrain.errors import UsageError

_LOCK_SECONDS: Final = 120.0


@dataclass(frozen=True)
class DataAccess:
    """The user's `--data.dir` and how catalogs of what is in it are made.

    Attributes:
        dir: folder or URL, or None where the user gave none.
        cache_dir: a folder of this user that survives runs, for what the task makes itself.
        on_corrupt: what to do with files that are damaged.
        download: whether the task may fetch its data into `dir`, if they are not there; `dir` then exists.
        file_cache: where copies of remote files are kept, if the user wants that.
        is_piped: whether the records to train on come through pipes, so that each can be read once only.
    """

    dir: str | None
    cache_dir: Path
    on_corrupt: OnCorrupt = "raise"
    download: bool = False
    file_cache: FileCache | None = None
    is_piped: bool = False

    def catalog(
        self,
        *names: str | Path,
        format: RecordFormat | str | None = None,  # noqa: A002  the word that users know
        check_data: bool = False,
    ) -> Catalog:
        """All records of files, folders or globs in the data folder; without names, of the folder itself.

        Wildcards are those of the names: a data folder whose own name holds such characters is meant as it is written.
        The catalog is kept in `cache_dir` for the next run, and made again when a file has changed.

        Args:
            names: relative to `dir`; absolute paths and URLs are used as they are.
            format: how records are kept, for example "tar"; default: what the names suggest.
            check_data: verify every checksum now, which reads all data once.

        Raises:
            UsageError: a relative name, but no data folder was given.
            data_sharding.ShardingError: there is no such file, no record in it, or damage.
        """
        paths = [self._pattern(str(name)) for name in names or ("",)]
        catalogs = self.cache_dir / "catalogs"
        return open_catalog(
            paths,
            check_data,
            format=format,
            on_corrupt=self.on_corrupt,
            cache_dir=catalogs,
            file_cache=self.file_cache,
        )

    def dataset(
        self,
        items: Any,
        *,
        names: Sequence[Any] | str | None = None,
        labels: Any = None,
        version: str | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pad: Mapping[str, float] | None = None,
        pad_to: Sequence[int] = (),
        lengths: Any = None,
        draws: bool | None = None,
    ) -> Catalog:
        """The items of an object: a map-style Dataset of torch, one of Hugging Face, a dict of arrays, a table.

        Make the object in `open_data`, on every rank. A task on it needs no `decode`. Arguments and errors as those of
        `data_sharding.Catalog.of`.
        """
        made = {"names": names, "labels": labels, "version": version, "collate_fn": collate_fn}
        return Catalog.of(items, **made, pad=pad, pad_to=pad_to, lengths=lengths, draws=draws)

    def path(self, name: str | Path) -> str:
        """The path or URL of something in the data folder.

        Raises:
            UsageError: no data folder was given.
        """
        name = str(name)
        if os.path.isabs(name) or is_remote(name):
            return name
        if self.dir is None:
            raise UsageError(
                f"The task reads {name or 'its records'} from a data folder, and none was given.",
                "There is nothing to train on.",
                "give it as --data.dir DIR.",
            )
        return f"{self.dir.rstrip('/')}/{name}" if name else self.dir

    def _pattern(self, name: str) -> str:
        """As `path`. Behind a URL nothing tells a folder from a pattern, so there its name is escaped."""
        path = self.path(name)
        if path != name and is_remote(path) and glob.has_magic(name):
            return f"{glob.escape(path.removesuffix(name))}{name}"
        return path

    def made_once(self, name: str, write: Callable[[Path], None]) -> Path:
        """The absolute path of `name` in `cache_dir`. If it is not there, `write` makes it, whole or not at all.

        Raises:
            UsageError: the cache cannot be written, or another process holds its lock too long.
        """
        path = self.cache_dir.absolute() / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                with FileLock(path.with_name(f".{name}.lock"), timeout=_LOCK_SECONDS):
                    if not path.exists():  # else written again under the eyes of a worker that has opened it
                        write(path)
        except Timeout as error:
            raise UsageError(
                f"The lock {error.lock_file} was held for {_LOCK_SECONDS:.0f} s.",
                "Another process is writing the data set, or hangs.",
                "end that process and start again.",
            ) from error
        except OSError as error:
            raise UsageError(
                f"The data set cannot be written to {path.parent}: {error}.",
                "The task keeps its records there.",
                "set HVDTRAIN_CACHE_DIR to a folder that you can write.",
            ) from error
        return path
