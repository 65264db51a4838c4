"""What the catalog and the reader need of a file format, and what a decode function receives.

A format is a class like this one, in a file beside this and a line in `registry.py`; or in another package, whose
pyproject.toml has an entry point in the group "data_sharding.formats", `lines = "my_package.lines:LinesFormat"`:

    @dataclass(frozen=True)
    class LinesFormat(RecordFormat):
        name = "lines"
        patterns = ("*.jsonl",)

        def scan(self, path, source, check_data):
            content = np.frombuffer(source[0 : source.size()], np.uint8)
            ends = np.flatnonzero(content == ord("\\n")) + 1
            begins = np.concatenate([[0], ends[:-1]])
            return RecordIndex(begins, ends - begins)
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple, Protocol, Self, overload

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import CorruptRecordError
from data_sharding.sample_random import SampleRandom
from data_sharding.storage import ByteSource, FileEntry, describe_file, open_source
from data_sharding.storage.file_cache import FileCache
from data_sharding.storage.input_files import Paths
from data_sharding.storage.torn_maps import watching_maps

GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"

RowType = tuple[np.dtype[Any], tuple[int, ...]]
"""dtype and shape of a row of an array."""


class RecordIndex(NamedTuple):
    """Where the records of one file are, in file order.

    Attributes:
        offsets: int64[n], first byte to read for each record.
        lengths: int64[n], bytes to read for it.
        crcs: uint32[n], each payload's checksum as stored in the file; None where the format has none.
        labels: int64[n], labels that the format keeps apart from the payload; None where it keeps none.
        damage: what is wrong with the file. Records named in it stay in the index as long as a reader can tell that
            they are damaged; others are left out. Where framing is lost, the index ends and this is the last entry.
        layout: what each record consists of, in words, as far as the format knows; the same in all files of a catalog.
        row_groups: int32[n], for formats that decode several records together: which group of the file a record is in,
            ascending; None where each can be had by itself.
    """

    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    crcs: NDArray[np.uint32] | None = None
    labels: NDArray[np.int64] | None = None
    damage: tuple[CorruptRecordError, ...] = ()
    layout: frozenset[str] = frozenset()
    row_groups: NDArray[np.int32] | None = None

    @classmethod
    def of_nothing(cls, *damage: CorruptRecordError) -> Self:
        """That of a file which holds no record, or none that can be told from a damaged one."""
        empty = np.empty(0, np.int64)
        return cls(empty, empty, damage=damage)


class Damaged(bytes):
    """An empty span instead of one that a source could not decode. `reason` is a sentence; `hint` says what to do
    where the file is sound, and restoring it would not help (else "")."""

    reason: str
    hint: str

    @classmethod
    def because(cls, reason: str, hint: str = "") -> Self:
        span = cls()
        span.reason, span.hint = reason, hint
        return span


class Unpacked(NamedTuple):
    """Payloads of k records, and which of them are sound: bool[k]."""

    payloads: list[bytes]
    intact: NDArray[np.bool_]


class RecordFormat(Protocol):
    """A way to keep records in files so that each can be read at random.

    Implementations are frozen dataclasses, whose fields are the format's options and have defaults: equal options make
    equal formats. They give `name`, `patterns` and `scan`; the rest is as in most formats: payloads are spans of bytes
    as they are in the file, without a checksum.
    """

    name: ClassVar[str]
    """Name of the format, as given on the command line and stored in saved catalogs."""

    recursive: ClassVar[bool] = False
    """Whether files in subfolders belong to a folder's data."""

    header_bytes: ClassVar[int] = 0
    """Bytes between the start of a record's frame and the first byte that is read for it."""

    offset_unit: ClassVar[str] = "byte"
    """What `RecordIndex.offsets` count: "byte", "row" for formats that cannot be read by bytes, or "item"."""

    scans_content: ClassVar[bool] = False
    """Whether `scan` goes through a whole file; else it reads little of it."""

    labels_beside: ClassVar[bool] = False
    """Whether labels stand in other files than records, whose versions a catalog does not know: it is made anew each
    time, and not kept or published."""

    is_stored: ClassVar[bool] = True
    """Whether records are bytes of files; else `items` makes them."""

    draws: ClassVar[bool] = False
    """Whether making an item, or a batch of items, takes random numbers from the generators of the process."""

    pads: ClassVar[bool] = False
    """Whether `collate` wants to know how long the longest item of a global batch is."""

    @property
    def patterns(self) -> tuple[str, ...]:
        """Shell patterns, in lower case, for the names of this format's files."""

    def scan(self, path: str, source: ByteSource, check_data: bool) -> RecordIndex:
        """Find all records of a file that is not empty. `path` is for messages, and to find a neighbour file.

        Args:
            check_data: also read every payload and compare its checksum, where the format has one.

        Raises:
            MissingDataError: a file that belongs to this one is missing.
            CorruptRecordError: the file is not of this format at all, or compressed. Damage inside is returned.
        """

    def scan_beside(self, entry: FileEntry) -> RecordIndex | None:  # noqa: ARG002
        """What `scan` would return, from an index that another program has left beside a file; None: read the file."""
        return None

    def open(self, entry: FileEntry) -> ByteSource:
        """Open a file for reading at random."""
        return open_source(entry)

    def open_keeping(self, entry: FileEntry, cache: FileCache) -> ByteSource:  # noqa: ARG002
        """As `open`; what is decoded again and again may be kept in the cache."""
        return self.open(entry)

    def unpack(self, raw: list[bytes], crcs: NDArray[np.uint32] | None, check: bool) -> Unpacked:  # noqa: ARG002
        """From the bytes of k spans to k payloads.

        Args:
            crcs: uint32[k] of the catalog; None where the format has none.
            check: compare checksums. Framing inside the span is always checked.
        """
        return Unpacked(raw, np.ones(len(raw), np.bool_))

    def items(self, numbers: NDArray[np.int64], random: SampleRandom | None) -> Sequence[Any]:  # noqa: ARG002
        """Items numbers int64[k] of an object, with draws for augmentation if there are any: where not `is_stored`."""
        raise TypeError(f"records of the format {self.name} are bytes of files")

    def collate(
        self,
        items: Sequence[Any],  # noqa: ARG002
        longest: int | None = None,  # noqa: ARG002
        random: SampleRandom | None = None,  # noqa: ARG002
    ) -> dict[str, NDArray[Any]]:
        """Arrays of k rows from k items, where not `is_stored`.

        Args:
            longest: length of the longest item in the global batch, if that is known.
            random: draws for augmentation of these rows, where `draws`.
        """
        raise TypeError(f"records of the format {self.name} are bytes of files")

    def of_file(self, file_id: int) -> "RecordFormat":  # noqa: ARG002
        """The format of one of a catalog's files: this one, unless catalogs of several formats were joined."""
        return self

    @property
    def collation(self) -> Any:
        """What `collate` does besides stacking, as something that equals another object's if both do the same."""
        return None

    def require_items(self) -> None:
        """Raises PlanError: an object's first item cannot be taken apart as the user says."""
        return

    def for_paths(self, paths: Paths) -> "RecordFormat":  # noqa: ARG002
        """The format with options that follow from the paths that a user names."""
        return self

    def file_labels(self, paths: Sequence[str]) -> NDArray[np.int64] | None:  # noqa: ARG002
        """One label a file, int64[len(paths)], where the path says it (folders of images); else None."""
        return None

    def row_type(self, entry: FileEntry) -> RowType | None:  # noqa: ARG002
        """dtype and shape of a record of that file, for formats whose records are rows of arrays; else None."""
        return None

    def example_label(self, entry: FileEntry) -> str | None:  # noqa: ARG002
        """The name of the labels ("": there are none) if records of that file became tf.train.Examples; else None."""
        return None


@dataclass(frozen=True, eq=False)
class RecordBatch(Sequence[Any]):
    """What a decode function receives: k records, as a sequence of their payloads, and more.

    Attributes:
        payloads: the bytes of each; or the items, where records are those of an object.
        ids: int64[k], their numbers in the catalog.
        labels: int64[k], where the format keeps labels apart from the payload (folders of images, CIFAR, MNIST); else
            None.
        intact: bool[k]; False for a damaged record, which carries another one's payload and gets weight 0.
        random: draws for augmentation, a function of (seed, epoch, record); None where nothing is to be augmented.
        row_type: finds out dtype and shape of a record, or None where records are not rows of an array; None where they
            come from no file.
        collate: makes arrays of items; None where payloads are bytes.
        longest: length of the longest item of the global batch, where items of an object are padded; else None.
        sources: int64[k], from which of the catalogs that were joined or mixed each record comes; None: none were.
        reasons: what is wrong with records that are not intact, by their numbers.
        catalog: in which `ids` are numbers: of a part of the data, where parts were made; None where records come
            through a pipe.
    """

    payloads: Sequence[Any]
    ids: NDArray[np.int64]
    labels: NDArray[np.int64] | None
    intact: NDArray[np.bool_]
    random: SampleRandom | None = None
    row_type: Callable[[], RowType | None] | None = None
    collate: Callable[[Sequence[Any]], dict[str, NDArray[Any]]] | None = None
    sources: NDArray[np.int64] | None = None
    longest: int | None = None
    reasons: Mapping[int, str] = field(default_factory=dict)
    catalog: Any = None  # a RecordTable, which stands above this module

    def only(self, row: int) -> "RecordBatch":
        """The record at a place of the batch, alone."""
        place = slice(row, row + 1)
        return self._at(place, self.payloads[place])

    def rows(self, places: NDArray[np.int64]) -> "RecordBatch":
        """The records at these places of the batch; one that is named twice is there twice."""
        return self._at(places, [self.payloads[place] for place in places.tolist()])

    def _at(self, places: slice | NDArray[np.int64], payloads: Sequence[Any]) -> "RecordBatch":
        labels = None if self.labels is None else self.labels[places]
        random = None if self.random is None else self.random.of_rows(places)
        sources = None if self.sources is None else self.sources[places]
        ids, intact = self.ids[places], self.intact[places]
        return replace(self, payloads=payloads, ids=ids, labels=labels, intact=intact, random=random, sources=sources)

    def __len__(self) -> int:
        return len(self.payloads)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self.payloads[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.payloads)


def scan_file(record_format: RecordFormat, path: str, check_data: bool = False) -> RecordIndex:
    """The records of one file. Raises as `RecordFormat.scan`, and for the first damage inside."""
    entry = describe_file(path)
    with watching_maps:
        index = record_format.scan(entry.path, record_format.open(entry), check_data)
    if index.damage:
        raise index.damage[0]
    return index


class FrameError(Exception):
    """The bytes are not a sound frame: `what` completes a sentence, the frame begins at byte `offset`."""

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(what, offset)
        self.what, self.offset = what, offset


def cut_short(path: str, record: int, number: int, how: str) -> CorruptRecordError:
    """The error for a file that ends inside its record `number`, which begins at byte `record`."""
    fact = f"{path} ends inside record {number}, which begins at byte offset {record}."
    return CorruptRecordError(fact, f"The file was cut short: {how}.", path=path, offset=record)


def refuse_compressed(path: str, head: bytes, hint: str = "") -> None:
    """Raise CorruptRecordError if a file that should be read at random is compressed as a whole.

    Args:
        head: the first four bytes, or more.
        hint: for a file of gzip.
    """
    if head.startswith(_ZSTD_MAGIC):
        raise CorruptRecordError(
            f"{path} is compressed with zstd, from byte offset 0 on.",
            "Its records cannot be read at random.",
            f"decompress it once with `zstd --decompress {shlex.quote(path)}`.",
            path=path,
        )
    if head.startswith(GZIP_MAGIC):
        raise CorruptRecordError(
            f"{path} is compressed with gzip, from byte offset 0 on.",
            "A gzip stream allows no random access, so its records cannot be indexed.",
            hint or f"rewrite it once with `hvdtrain shard convert {shlex.quote(path)} FOLDER`, or decompress it.",
            path=path,
        )
