"""CIFAR-10 and CIFAR-100 batches, both the binary and the Python version, read in place and never unpickled.

Layouts: https://www.cs.toronto.edu/~kriz/cifar.html. The binary version is rows of label and image, one byte and 3072
(CIFAR-100: two labels, coarse and fine). The Python version is a pickled dict of an array uint8[n, 3072] and one or
two lists of labels; the array's bytes are in the file as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.checks import one_of
from data_sharding.errors import CorruptRecordError
from data_sharding.formats.labelled_rows import labelled_bytes, labelled_index
from data_sharding.formats.pickle_layout import Call, Span, read_pickled_dict
from data_sharding.formats.record_format import RecordBatch, RecordFormat, RecordIndex, cut_short
from data_sharding.storage import ByteSource

Split = Literal["train", "test"]
Classes = Literal[10, 20, 100]

IMAGE_BYTES: Final = 3 * 32 * 32
_PICKLE_MAGIC: Final = b"\x80"
_ROWS_AT_ONCE: Final = 1024
_RECONSTRUCT: Final = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
_FROM_BUFFER: Final = ("numpy.core.numeric _frombuffer", "numpy._core.numeric _frombuffer")
_UINT8_ARGUMENTS: Final = (("u1", False, True), ("|u1", False, True))


class _Variant(NamedTuple):
    """`column` of `label_bytes` labels is the one that counts; `key` is its name in the Python version."""

    key: str
    label_bytes: int
    column: int
    patterns: Mapping[str, tuple[str, ...]]


_CIFAR10_NAMES: Final = {"train": ("data_batch_*",), "test": ("test_batch", "test_batch.bin")}
_CIFAR100_NAMES: Final = {"train": ("train", "train.bin"), "test": ("test", "test.bin")}
_VARIANTS: Final = {
    10: _Variant("labels", 1, 0, _CIFAR10_NAMES),
    100: _Variant("fine_labels", 2, 1, _CIFAR100_NAMES),
    20: _Variant("coarse_labels", 2, 0, _CIFAR100_NAMES),
}


@dataclass(frozen=True)
class Cifar10Format(RecordFormat):
    """`RecordFormat` for CIFAR batches: payloads of 3072 bytes (3 x 32 x 32, channel first), and labels."""

    split: Split = "train"  # which files of a folder are meant; a file named by itself is taken whatever it is called
    classes: Classes = 10  # 10 for CIFAR-10; for CIFAR-100, 100 for its fine or 20 for its coarse labels
    name = "cifar10"
    scans_content = True

    def __post_init__(self) -> None:
        one_of("split", self.split, Split)
        one_of("classes", self.classes, Classes)

    @property
    def patterns(self) -> tuple[str, ...]:
        return _VARIANTS[self.classes].patterns[self.split]

    def scan(self, path: str, source: ByteSource, check_data: bool) -> RecordIndex:  # noqa: ARG002
        """Of the Python version everything but the images is read, of the binary version everything."""
        if source[0:1] == _PICKLE_MAGIC:
            return _index_pickled(path, source, _VARIANTS[self.classes], self.classes)
        return _index_binary(path, source, _VARIANTS[self.classes], self.classes)


def decode_cifar10(records: RecordBatch, channels_last: bool = True) -> dict[str, NDArray[Any]]:
    """Images uint8[k, 32, 32, 3], or [k, 3, 32, 32] without `channels_last`, as "image", and int64[k] as "label".

    Raises PlanError (the records are not of this format).
    """
    pixels, labels = labelled_bytes(records, IMAGE_BYTES, "CIFAR images")
    images = pixels.reshape(-1, 3, 32, 32)
    return {"image": (images.transpose(0, 2, 3, 1) if channels_last else images).copy(), "label": labels}


def _index_binary(path: str, source: ByteSource, variant: _Variant, classes: int) -> RecordIndex:
    row = variant.label_bytes + IMAGE_BYTES
    rows, rest = divmod(source.size(), row)
    step = row * _ROWS_AT_ONCE
    # In large pieces, though one byte a row would do: a remote source is asked once for each.
    parts = (np.frombuffer(source[at : min(at + step, rows * row)], np.uint8) for at in range(0, rows * row, step))
    labels = np.concatenate([np.empty(0, np.uint8), *(part[variant.column :: row] for part in parts)]).astype(np.int64)
    if not rows or labels[0] >= classes:
        raise _no_batch(path, f"is neither a pickle nor rows of {variant.label_bytes} labels and {IMAGE_BYTES} pixels")
    offsets = np.arange(rows, dtype=np.int64) * row + variant.label_bytes
    labels_at = offsets - variant.label_bytes + variant.column
    index = labelled_index(path, offsets, IMAGE_BYTES, labels, classes, labels_at)
    if not rest:
        return index
    how = f"the record needs {row} bytes but only {rest} are left"
    return index._replace(damage=(*index.damage, cut_short(path, rows * row, rows, how)))


def _index_pickled(path: str, source: ByteSource, variant: _Variant, classes: int) -> RecordIndex:
    batch = read_pickled_dict(path, source)
    if "data" not in batch or variant.key not in batch:
        raise _no_batch(path, f"has the entries {sorted(batch)[:8]}, not 'data' and {variant.key!r}")
    begin, rows = _find_images(path, batch["data"])
    listed = batch[variant.key]
    if not isinstance(listed, list) or not all(type(label) is int and abs(label) < 1 << 62 for label in listed):
        raise _no_batch(path, f"has {variant.key!r} that are not a list of integers")
    if len(listed) != rows:
        raise _no_batch(path, f"has {rows} images but {len(listed)} labels")
    offsets = np.arange(rows, dtype=np.int64) * IMAGE_BYTES + begin
    return labelled_index(path, offsets, IMAGE_BYTES, np.array(listed, np.int64), classes, offsets)


def _find_images(path: str, data: Any) -> tuple[int, int]:
    """First byte of the pickled array and its number of rows.

    See `array_reduce` and `array_reduce_ex` in numpy's methods.c: up to protocol 4 an empty array whose state is set,
    from protocol 5 on a view of a buffer.
    """
    match data:
        case Call(function=function, state=(_, shape, dtype, order, content)) if function in _RECONSTRUCT:
            pass
        case Call(function=function, arguments=(content, dtype, shape, order)) if function in _FROM_BUFFER:
            pass
        case _:
            raise _no_batch(path, "has 'data' that is not an array of bytes")
    if isinstance(content, Call) and content.function == "_codecs encode":
        raise CorruptRecordError(
            f"{path} holds its images as text, as Python 3 pickles them with protocol 2.",
            "Their bytes are not in the file as they are, so none can be read by itself.",
            "use the binary version (.bin), or pickle the batch again with protocol 3 or higher.",
            path=path,
        )
    is_uint8 = isinstance(dtype, Call) and dtype.function == "numpy dtype" and dtype.arguments in _UINT8_ARGUMENTS
    if not isinstance(content, Span) or not content.raw or not is_uint8:
        raise _no_batch(path, "has 'data' that is not an array of bytes")
    if not isinstance(shape, tuple) or [type(length) for length in shape] != [int, int] or order not in (False, "C"):
        raise _no_batch(path, "has 'data' that is not kept row by row")
    if shape[1] != IMAGE_BYTES or shape[0] * IMAGE_BYTES != content.end - content.begin:
        raise _no_batch(path, f"has 'data' of shape {shape} in {content.end - content.begin} bytes")
    return content.begin, shape[0]


def _no_batch(path: str, how: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"{path} {how}.",
        "It is not a CIFAR batch of the requested kind, from byte offset 0 on.",
        "check the path, and the option classes: 10 for CIFAR-10, 100 or 20 for CIFAR-100.",
        path=path,
    )
