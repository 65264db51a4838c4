"""Every error that data_sharding raises on purpose: all of them are a `ShardingError`."""

import copyreg
from typing import Any


class ShardingError(Exception):
    """Base of all errors: one sentence what is the case, one why that cannot work, and one what the user can do."""

    def __init__(self, fact: str, conflict: str, hint: str) -> None:
        super().__init__(fact, conflict, hint)
        self.fact, self.conflict, self.hint = fact, conflict, hint

    def __str__(self) -> str:
        return f"{self.fact} {self.conflict}\nHINT: {self.hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class MissingDataError(ShardingError):
    """There is nothing to read: no such path, no matching file, or no record inside."""


class CorruptRecordError(ShardingError):
    """Bytes of the file `path` contradict their own checksum or framing.

    `offset` is the byte at which the damaged record's frame begins; 0 where the whole file is meant.
    """

    def __init__(
        self, fact: str, conflict: str, hint: str = "restore the file from its source.", *, path: str, offset: int = 0
    ) -> None:
        super().__init__(fact, conflict, hint)
        self.path, self.offset = path, offset


class ChangedDataError(ShardingError):
    """A file's size or modification time differs from the catalog's, or the file has gone."""


class OpenFilesLimitError(ShardingError):
    """The process may not open another file."""


class CatalogError(ShardingError):
    """A saved catalog is damaged, or was written in a format that this version does not read."""


class CacheError(ShardingError):
    """A folder for copies of remote files cannot be used: it is full, somebody else's, or holds something else."""


class ExampleError(ShardingError):
    """A value that tf.train.Example cannot hold, or bytes that are not a serialized Example."""


class UnlikeItemsError(ShardingError):
    """Items of an object cannot become one batch: they differ in parts, in kinds of values, or in shapes, or there are
    not as many as were asked for."""


class PlanError(ShardingError):
    """A request that no data could satisfy: too small a batch, a position outside the epoch, a bad option."""


class ScatteredSampleError(PlanError):
    """The members of a sample do not stand together in a tar archive."""


class NoSuchRecordError(PlanError, IndexError):
    """A record id is not in the catalog. As an IndexError it ends iteration over what has `__getitem__` alone."""


class BadRecord(Exception):  # noqa: N818  it refuses a record, and ends nothing where those are left out
    """Raised by a `decode` function, or by an object that makes an item: this record is not to be used.

    It is then treated as a damaged one, as `on_corrupt` says: an error, or left out, counted and named.

    Args: `reason`: what is wrong with it, for people.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LoaderTimeoutError(ShardingError):
    """A background thread delivered nothing within its deadline."""
