"""What the loop needs of the data, and of the ledger of used records; and when it begins to read what comes next."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from data_sharding import LoadedBatch


class Epoch(Protocol):
    """What the loop must know of a plan; the same in all epochs, over all ranks."""

    @property
    def steps(self) -> int: ...

    @property
    def num_records(self) -> int: ...


class Loader(AbstractContextManager["Loader"], Protocol):
    """This rank's slices of an epoch, read ahead in the background until the block ends."""

    def __iter__(self) -> Iterator[LoadedBatch]: ...

    def abandon(self) -> None:
        """Let the end of the block wait for no read that is under way."""


class Source(Protocol):
    """A data set divided into global batches; `loader` delivers this rank's slices of them."""

    def plan(self, epoch: int) -> Epoch:
        """How an epoch is cut into steps."""

    def loader(self, epoch: int, start_step: int) -> Loader:
        """Decoded slices of the epoch's steps, from `start_step` on."""

    def begin(self, epoch: int) -> None:
        """Start to read an epoch in the background, if that can be: its `loader`, from step 0, is asked for soon."""

    def abandon(self) -> None:
        """Read no more of what was begun and not asked for."""

    def decoded_again(self, epoch: int, ids: NDArray[np.int64]) -> dict[str, NDArray[Any]] | None:
        """Records ids int64[k] as `loader` gave them in that epoch; None where nothing can be read twice."""

    def describe(self, record_id: int) -> str:
        """Name a record for people."""

    def reading(self) -> str:
        """What is being read or decoded now, for people: "reading record 3, FILE …"."""


@dataclass(frozen=True)
class ReadAhead:
    """Leaves no gap at the end of an epoch: once its last batch is here, what is read next begins, while the model
    still works.

    Two are never read at once, so no more threads and processes decode than inside an epoch. The first batches of the
    next epoch are held while the checkpoint of this one's end is saved. What was begun and is not needed is given up
    when the run ends.
    """

    train: Source
    validation: Sequence[Source]
    steps_per_epoch: int
    last: int  # the update after which the run ends

    def after_training(self, step: int) -> None:
        """The batch of update `step` is here. If it is the last of an epoch, validation follows, or the next epoch."""
        if step % self.steps_per_epoch:
            return  # the run ends here, and its loader still reads on
        self.after_set(step, -1)

    def after_set(self, step: int, number: int) -> None:
        """In the validation after update `step`, the last batch of set `number` is here, which counts from 0; -1: of
        training."""
        if number + 1 < len(self.validation):
            self.validation[number + 1].begin(0)
        elif step % self.steps_per_epoch == 0 and step < self.last:
            self.train.begin(step // self.steps_per_epoch)

    def close(self) -> None:
        """Give up what was begun."""
        for source in (self.train, *self.validation):
            source.abandon()


class Ledger(Protocol):
    """Notes which records training has used. Collective where it says so."""

    def start(self, step: int) -> None:
        """Training starts or resumes after `step` updates. Collective."""

    def add(self, batch: LoadedBatch) -> None:
        """This rank was trained on `batch`."""

    def end_segment(self, step: int) -> Callable[[], None]:
        """The segment of steps that ends after update `step` is complete. Collective. What it returns writes it on rank
        0, before the checkpoint of `step`, and raises OSError."""
