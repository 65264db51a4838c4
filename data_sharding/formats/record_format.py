"""What the catalog and the reader need of a file format: the interface that a new format implements."""

import shlex
from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import CorruptRecordError, PlanError
from data_sharding.records import RecordBatch, RowType
from data_sharding.storage import ByteSource, FileEntry, describe_file, open_source
from data_sharding.storage.torn_maps import watching_maps

GZIP_MAGIC: Final = b"\x1f\x8b"


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
    """

    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    crcs: NDArray[np.uint32] | None = None
    labels: NDArray[np.int64] | None = None
    damage: tuple[CorruptRecordError, ...] = ()
    layout: frozenset[str] = frozenset()

    @classmethod
    def of_nothing(cls, *damage: CorruptRecordError) -> Self:
        """That of a file which holds no record, or none that can be told from a damaged one."""
        none = np.empty(0, np.int64)
        return cls(none, none, damage=damage)


class Damaged(bytes):
    """An empty span instead of one that a source could not decode; `reason` is a sentence."""

    reason: str

    @classmethod
    def because(cls, reason: str) -> Self:
        """One with that reason."""
        span = cls()
        span.reason = reason
        return span


class Unpacked(NamedTuple):
    """Payloads of k records, and which of them are sound: bool[k]."""

    payloads: list[bytes]
    intact: NDArray[np.bool_]


class RecordFormat(Protocol):
    """A way to keep records in files so that each can be read at random.

    Implementations are frozen dataclasses: equal options make equal formats. What they do not say is as in most
    formats: payloads are spans of bytes as they are in the file, without a checksum.
    """

    name: ClassVar[str]
    """Name of the format, as given on the command line and stored in saved catalogs."""

    recursive: ClassVar[bool] = False
    """Whether files in subfolders belong to a folder's data."""

    header_bytes: ClassVar[int] = 0
    """Bytes between the start of a record's frame and the first byte that is read for it."""

    offset_unit: ClassVar[str] = "byte"
    """What `RecordIndex.offsets` count: "byte", or "row" for formats that cannot be read by bytes."""

    @property
    def patterns(self) -> tuple[str, ...]:
        """Shell patterns, in lower case, for the names of this format's files inside a folder."""

    def file_labels(self, paths: Sequence[str]) -> NDArray[np.int64] | None:  # noqa: ARG002
        """One label a file, int64[len(paths)], where the path says it (folders of images); else None.

        `RecordIndex.labels` says it where each record has its own.
        """
        return None

    def scan(self, path: str, source: ByteSource, check_data: bool) -> RecordIndex:
        """Find all records of a file that is not empty. `path` is for messages, and to find a neighbour file.

        Args:
            check_data: also read every payload and compare its checksum, where the format has one.

        Raises:
            MissingDataError: a file that belongs to this one is missing.
            CorruptRecordError: the file is not of this format at all, or compressed. Damage inside is returned.
        """

    def open(self, entry: FileEntry) -> ByteSource:
        """Open a file for reading at random."""
        return open_source(entry)

    def row_type(self, entry: FileEntry) -> RowType | None:  # noqa: ARG002
        """dtype and shape of a record of that file, for formats whose records are rows of arrays; else None.

        Raises:
            ChangedDataError: the file is not the one that was indexed.
        """
        return None

    def unpack(self, raw: list[bytes], crcs: NDArray[np.uint32] | None, check: bool) -> Unpacked:  # noqa: ARG002
        """From the bytes of k spans to k payloads.

        Args:
            crcs: uint32[k] of the catalog; None where the format has none.
            check: compare checksums. Framing inside the span is always checked.
        """
        return Unpacked(raw, np.ones(len(raw), np.bool_))


def scan_file(record_format: RecordFormat, path: str, check_data: bool = False) -> RecordIndex:
    """The records of one file. Raises as `RecordFormat.scan`, and for the first damage inside."""
    entry = describe_file(path)
    with watching_maps:
        index = record_format.scan(entry.path, record_format.open(entry), check_data)
    if index.damage:
        raise index.damage[0]
    return index


class FrameError(Exception):
    """The bytes are no sound frame: `what` completes a sentence, and `offset` is the byte at which the frame begins."""

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(what, offset)
        self.what, self.offset = what, offset


def cut_short(path: str, record: int, number: int, how: str) -> CorruptRecordError:
    """The error for a file that ends inside its record `number`, which begins at byte `record`."""
    return CorruptRecordError(
        f"{path} ends inside record {number}, which begins at byte offset {record}.",
        f"The file was cut short: {how}.",
        path=path,
        offset=record,
    )


def refuse_gzip(path: str, head: bytes, hint: str = "") -> None:
    """Raise CorruptRecordError if a file that should be read at random is compressed as a whole with gzip."""
    if head.startswith(GZIP_MAGIC):
        raise CorruptRecordError(
            f"{path} is compressed with gzip, from byte offset 0 on.",
            "A gzip stream allows no random access, so its records cannot be indexed.",
            hint or f"rewrite it once with `hvdtrain shard convert {shlex.quote(path)} FOLDER`, or decompress it.",
            path=path,
        )


def labelled_bytes(records: RecordBatch, size: int, what: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of k records, a read-only uint8[k * size], which torch.from_numpy warns about, and int64[k] labels.

    Raises:
        PlanError: the records have no labels, or are not of `size` bytes each.
    """
    payloads = b"".join(records.payloads)
    if records.labels is None or len(payloads) != len(records) * size:
        raise PlanError(
            f"{len(records)} records of {len(payloads)} bytes are to be decoded as {what}.",
            f"Such a record has {size} bytes and a label.",
            "decode these records with the function, and the shape, that fit how they were written.",
        )
    return np.frombuffer(payloads, np.uint8), records.labels


def labelled_index(
    path: str,
    offsets: NDArray[np.int64],
    size: int,
    labels: NDArray[np.int64],
    classes: int,
    labels_at: NDArray[np.int64],
) -> RecordIndex:
    """An index without the records whose label is out of range: nothing would reveal those when they are read.

    Args:
        path: the file of the labels, in which label i is at byte `labels_at[i]`.
        size: bytes of every record.
    """
    good = (labels >= 0) & (labels < classes)
    damage = [
        CorruptRecordError(
            f"Record {number} of {path}, at byte offset {labels_at[number]}, has the label {labels[number]}.",
            f"Labels are 0 to {classes - 1}.",
            "restore the file from its source, or correct the option classes.",
            path=path,
            offset=int(labels_at[number]),
        )
        for number in np.flatnonzero(~good).tolist()
    ]
    offsets = offsets[good]
    return RecordIndex(offsets, np.full_like(offsets, size), labels=labels[good], damage=tuple(damage))
