"""What a decode function is given: some records, and their metadata."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from data_sharding.sample_random import SampleRandom

RowType = tuple[np.dtype[Any], tuple[int, ...]]
"""dtype and shape of a row of an array."""


@dataclass(frozen=True, eq=False)
class RecordBatch(Sequence[bytes]):
    """k records: a sequence of their payloads, and more.

    Attributes:
        payloads: the bytes of each.
        ids: int64[k], their numbers in the catalog.
        labels: int64[k], where the format keeps labels apart from the payload (folders of images, CIFAR, MNIST); else
            None.
        intact: bool[k]; False for a damaged record, which carries another one's payload and gets weight 0.
        random: draws for augmentation, a function of (seed, epoch, record); None where nothing is to be augmented.
        row_type: finds out dtype and shape of a record, or None where records are not rows of an array; None where they
            come from no file.
    """

    payloads: list[bytes]
    ids: NDArray[np.int64]
    labels: NDArray[np.int64] | None
    intact: NDArray[np.bool_]
    random: SampleRandom | None = None
    row_type: Callable[[], RowType | None] | None = None

    def only(self, row: int) -> "RecordBatch":
        """The record at a place of the batch, alone."""
        place = slice(row, row + 1)
        labels = None if self.labels is None else self.labels[place]
        random = None if self.random is None else self.random.of_records(self.ids[place])
        return RecordBatch(self.payloads[place], self.ids[place], labels, self.intact[place], random, self.row_type)

    def __len__(self) -> int:
        return len(self.payloads)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        return self.payloads[index]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.payloads)
