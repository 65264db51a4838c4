"""What CIFAR and MNIST have in common: records of one size, and labels apart from them."""

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import CorruptRecordError, PlanError
from data_sharding.formats.record_format import RecordBatch, RecordIndex


def labelled_bytes(records: RecordBatch, size: int, what: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of k records, a read-only uint8[k * size], which torch.from_numpy warns about, and int64[k] labels.

    Raises PlanError (the records have no labels, or are not of `size` bytes each).
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

    Records have `size` bytes each; label i is at byte `labels_at[i]` of the file `path`.
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
