"""MNIST and its look-alikes: images and labels in two idx files side by side.

Layout: http://yann.lecun.com/exdb/mnist. An idx file is two zero bytes, a type (8: unsigned bytes), the number of
dimensions, each dimension as a big-endian 32-bit integer, and the values.
"""

import struct
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from data_sharding.checks import one_of
from data_sharding.errors import CorruptRecordError, MissingDataError, PlanError
from data_sharding.formats.labelled_rows import labelled_bytes, labelled_index
from data_sharding.formats.record_format import RecordBatch, RecordFormat, RecordIndex, refuse_compressed
from data_sharding.storage import ByteSource, describe_file, open_source

Split = Literal["train", "test"]

_STEMS: Final = {"train": "train", "test": "t10k"}
_UNSIGNED_BYTES: Final = 8
_IMAGES_AT: Final = 16  # behind type and dimensions
_LABELS_AT: Final = 8


@dataclass(frozen=True)
class MnistFormat(RecordFormat):
    """`RecordFormat` for pairs of idx files: payloads of rows x columns bytes (28 x 28 for MNIST), and labels.

    The labels' file is found by the images' name: `images` becomes `labels` and `idx3` becomes `idx1`.

    Raises PlanError (another split, or a number of classes outside 1 to 256).
    """

    split: Split = "train"  # which files of a folder are meant; a file of images named by itself is taken, whichever
    classes: int = 10  # labels are 0 to classes - 1; EMNIST has up to 62
    name = "mnist"
    labels_beside = True

    def __post_init__(self) -> None:
        one_of("split", self.split, Split)
        if not 1 <= self.classes <= 256:
            fact = f"The format mnist was given classes={self.classes}."
            raise PlanError(fact, "A label is one byte.", "choose a number from 1 to 256.")

    @property
    def patterns(self) -> tuple[str, ...]:
        return f"{_STEMS[self.split]}-images-idx3-ubyte", f"{_STEMS[self.split]}-images.idx3-ubyte"

    def scan(self, path: str, source: ByteSource, check_data: bool) -> RecordIndex:  # noqa: ARG002
        """Of the images only the header is read, the labels all."""
        images, rows, columns = _shape(path, source, 3)
        labels_path, size = _labels_path(path), rows * columns
        if not 0 < size < 2**31:
            raise _not_idx(path, f"has images of {rows} x {columns} pixels")
        labels = _read_labels(labels_path, images)
        whole = min(images, (source.size() - _IMAGES_AT) // size)
        numbers = np.arange(whole, dtype=np.int64)
        offsets, labels = numbers * size + _IMAGES_AT, labels[:whole]
        index = labelled_index(labels_path, offsets, size, labels, self.classes, numbers + _LABELS_AT)
        if (announced := _IMAGES_AT + images * size) == source.size():
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

    Raises PlanError (the records are not of this format, or their images not of this shape).
    """
    pixels, labels = labelled_bytes(records, shape[0] * shape[1], f"images of {shape[0]} x {shape[1]}")
    return {"image": pixels.reshape(-1, *shape).copy(), "label": labels}


def _shape(path: str, source: ByteSource, dimensions: int) -> tuple[int, ...]:
    start = source[0 : 4 + 4 * dimensions]
    refuse_compressed(path, start, f"decompress it once with `gunzip --keep {path}`.")
    if start[:4] != bytes((0, 0, _UNSIGNED_BYTES, dimensions)):
        raise _not_idx(path, f"does not begin as an idx file of unsigned bytes in {dimensions} dimensions does")
    if len(start) < 4 + 4 * dimensions:
        raise _not_idx(path, "ends inside its header")
    return struct.unpack_from(f">{dimensions}I", start, 4)


def _labels_path(path: str) -> str:
    folder, slash, name = path.rpartition("/")
    if "images" not in name:
        fact = f"The name of {path} does not say where its labels are."
        conflict = "The labels' name is that of the images with `labels` instead of `images`."
        raise MissingDataError(fact, conflict, "name the file of images train-images-idx3-ubyte or alike.")
    return folder + slash + name.replace("images", "labels").replace("idx3", "idx1")


def _read_labels(path: str, images: int) -> NDArray[np.int64]:
    try:
        source = open_source(describe_file(path))
    except MissingDataError as error:
        fact = f"The images' labels are missing: {error.fact}"
        conflict = "Images without labels cannot be learnt from."
        raise MissingDataError(fact, conflict, f"put {path} beside the images, decompressed.") from error
    (announced,) = _shape(path, source, 1)
    if announced != images:
        raise _not_idx(path, f"announces {announced} labels, and its file of images {images} images")
    if source.size() != _LABELS_AT + images:
        raise _not_idx(path, f"announces {images} labels but has {source.size() - _LABELS_AT} bytes of them")
    return np.frombuffer(source[_LABELS_AT : _LABELS_AT + images], np.uint8).astype(np.int64)


def _not_idx(path: str, how: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"{path} {how}.",
        "It is not an idx file of the expected kind, from byte offset 0 on.",
        "restore the file from its source, and check that it is the one meant.",
        path=path,
    )
