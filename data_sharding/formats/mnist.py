"""MNIST and its look-alikes: images and labels in two idx files side by side.

Layout: http://yann.lecun.com/exdb/mnist. An idx file is two zero bytes, a type (8: unsigned bytes), the number of
dimensions, each dimension as a big-endian 32-bit integer, and the values.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import CorruptRecordError, MissingDataError, PlanError
from data_sharding.formats.interface import (
    GZIP_MAGIC,
    ByteFormat,
    RecordIndex,
    check_choice,
    gzip_refused,
    labelled_index,
)
from data_sharding.records import RecordBatch
from data_sharding.storage import ByteSource, describe_file, open_source

_STEMS: Final = {"train": "train", "test": "t10k"}
_UNSIGNED_BYTES: Final = 8


@final
@dataclass(frozen=True)
class MnistFormat(ByteFormat):
    """`RecordFormat` for pairs of idx files: payloads of rows x columns bytes (28 x 28 for MNIST), and labels.

    The labels' file is found by the images' name: `images` becomes `labels` and `idx3` becomes `idx1`.

    Attributes:
        split: which files of a folder are meant; a file of images named by itself is taken, whichever it is.
        classes: labels are 0 to classes - 1; EMNIST has up to 62.

    Raises:
        PlanError: another split, or a number of classes outside 1 to 256.
    """

    split: Literal["train", "test"] = "train"
    classes: int = 10
    name: ClassVar[str] = "mnist"

    def __post_init__(self) -> None:
        check_choice(self.name, "split", self.split, tuple(_STEMS))
        if not 1 <= self.classes <= 256:
            raise PlanError(
                f"The format mnist was given classes={self.classes}.",
                "A label is one byte.",
                "choose a number from 1 to 256.",
            )

    @property
    def patterns(self) -> tuple[str, ...]:
        return f"{_STEMS[self.split]}-images-idx3-ubyte", f"{_STEMS[self.split]}-images.idx3-ubyte"

    def scan(self, path: str, source: ByteSource, check_data: bool) -> RecordIndex:  # noqa: ARG002
        """Of the images only the header is read, the labels all.

        Raises:
            MissingDataError: there is no file of labels beside the images.
            CorruptRecordError: one of the files is no such idx file, compressed, or they do not belong together.
        """
        header = _read_header(path, source, 3)
        labels_path = _labels_path(path)
        images, rows, columns = header.shape
        size = rows * columns
        if not 0 < size < 2**31:
            raise _not_idx(path, f"has images of {rows} x {columns} pixels")
        labels = _read_labels(labels_path, images)
        whole = min(images, (source.size() - header.bytes) // size)
        numbers = np.arange(whole, dtype=np.int64)
        index = labelled_index(
            labels_path, numbers * size + header.bytes, size, labels[:whole].astype(np.int64), self.classes, numbers + 8
        )
        if (announced := header.bytes + images * size) == source.size():
            return index
        how = "was cut short" if source.size() < announced else "is longer than it says"
        damage = CorruptRecordError(
            f"{path} has {source.size()} bytes where its header announces {announced}.",
            f"It {how}: {whole} of its images are whole.",
            path=path,
            offset=min(announced, source.size()),
        )
        return index._replace(damage=(*index.damage, damage))


def decode_mnist(records: RecordBatch, shape: tuple[int, int] = (28, 28)) -> dict[str, NDArray[Any]]:
    """Images uint8[k, *shape] as "image", and int64[k] as "label".

    Raises:
        PlanError: the records are not of this format, or their images not of this shape.
    """
    payloads = b"".join(records.payloads)
    if records.labels is None or len(payloads) != len(records) * shape[0] * shape[1]:
        raise PlanError(
            f"{len(records)} records of {len(payloads)} bytes are to be decoded as images of {shape[0]} x {shape[1]}.",
            f"Such a record has {shape[0] * shape[1]} bytes and a label.",
            "give the shape of the images, or another decode function.",
        )
    # A copy: views of bytes objects are read-only, which torch.from_numpy warns about.
    return {"image": np.frombuffer(payloads, np.uint8).reshape(-1, *shape).copy(), "label": records.labels}


class _Header(NamedTuple):
    shape: tuple[int, ...]
    bytes: int


def _read_header(path: str, source: ByteSource, dimensions: int) -> _Header:
    length = 4 + 4 * dimensions
    start = source[0:length]
    if start[:2] == GZIP_MAGIC:
        raise gzip_refused(path, f"decompress it once with `gunzip --keep {path}`.")
    if start[:4] != bytes((0, 0, _UNSIGNED_BYTES, dimensions)):
        raise _not_idx(path, f"does not begin as an idx file of unsigned bytes in {dimensions} dimensions does")
    if len(start) < length:
        raise _not_idx(path, "ends inside its header")
    return _Header(struct.unpack_from(f">{dimensions}I", start, 4), length)


def _labels_path(path: str) -> str:
    folder, slash, name = path.rpartition("/")
    if "images" not in name:
        raise MissingDataError(
            f"The name of {path} does not say where its labels are.",
            "The labels' name is that of the images with `labels` instead of `images`.",
            "name the file of images train-images-idx3-ubyte or alike.",
        )
    return folder + slash + name.replace("images", "labels").replace("idx3", "idx1")


def _read_labels(path: str, images: int) -> NDArray[np.uint8]:
    try:
        source = open_source(describe_file(path))
    except MissingDataError as error:
        raise MissingDataError(
            f"The images' labels are missing: {error.fact}",
            "Images without labels cannot be learnt from.",
            f"put {path} beside the images, decompressed.",
        ) from error
    header = _read_header(path, source, 1)
    if header.shape != (images,):
        raise _not_idx(path, f"announces {header.shape[0]} labels, and its file of images {images} images")
    if source.size() != header.bytes + images:
        raise _not_idx(path, f"announces {images} labels but has {source.size() - header.bytes} bytes of them")
    return np.frombuffer(source[header.bytes : header.bytes + images], np.uint8)


def _not_idx(path: str, how: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"{path} {how}.",
        "It is not an idx file of the expected kind, from byte offset 0 on.",
        "restore the file from its source, and check that it is the one meant.",
        path=path,
        offset=0,
    )
