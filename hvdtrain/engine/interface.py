"""What the loop must know of the data, and of who keeps account of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from data_sharding import LoadedBatch


class Epoch(Protocol):
    """What the loop must know of a plan."""

    @property
    def steps(self) -> int:
        """Steps of an epoch: the same in all."""

    @property
    def num_records(self) -> int:
        """Records of an epoch, over all ranks."""


class Loader(AbstractContextManager["Loader"], Protocol):
    """This rank's slices of an epoch, read ahead in the background until the block ends."""

    def __iter__(self) -> Iterator[LoadedBatch]: ...

    def abandon(self) -> None:
        """Let the end of the block wait for no read that is under way."""


class Source(Protocol):
    """A data set cut into global batches, of which `loader` delivers this rank's slices."""

    def plan(self, epoch: int) -> Epoch:
        """How an epoch is cut into steps."""
        ...

    def loader(self, epoch: int, start_step: int) -> Loader:
        """Decoded slices of the epoch's steps, from `start_step` on."""
        ...

    def decoded_again(self, epoch: int, ids: NDArray[np.int64]) -> dict[str, NDArray[Any]] | None:
        """Records ids int64[k] as `loader` gave them in that epoch; None where nothing can be read twice."""
        ...

    def describe(self, record_id: int) -> str:
        """Name a record for people."""
        ...


class Ledger(Protocol):
    """Keeps account of the records that training has used. Collective where it says so."""

    def start(self, step: int) -> None:
        """Training takes up after `step` updates. Collective."""

    def add(self, batch: LoadedBatch) -> None:
        """This rank was trained on `batch`."""

    def commit(self, step: int) -> None:
        """A checkpoint after update `step` follows. Collective."""
