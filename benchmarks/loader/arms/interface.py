"""What a measured library is asked to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from benchmarks.loader.datasets import DataSet

Order = Literal["sequential", "shuffled"]
Batches = Iterator[Sequence[bytes]]


class Arm(Protocol):
    """A library in one configuration. A batch is a sequence of `bytes`, which the caller may keep."""

    @property
    def format(self) -> str:
        """Name of the folder with the files it reads; arms of the same format share them."""

    @property
    def resumes(self) -> str:
        """How it resumes an epoch: "seek", "restore" (a saved state), or "reread" (from the start, discarding)."""

    def versions(self) -> dict[str, str]:
        """Name and version of what is measured."""

    def prepare(self, folder: Path, data: DataSet) -> None:
        """Write the data set's payloads, in order, in this arm's format."""

    def open(self, folder: Path, data: DataSet, order: Order) -> Any:
        """The data set, ready to be iterated; counts towards the time to the first batch, not towards the speed."""

    def batches(self, opened: Any) -> Batches:
        """One epoch from its start, the last incomplete batch included."""

    def state_at(self, opened: Any, step: int) -> Any:
        """What a checkpoint after `step` batches holds. Not timed."""

    def resume(self, opened: Any, state: Any) -> Batches:
        """The rest of the epoch; `opened` is new."""

    def close(self, opened: Any) -> None:
        """Give up what `open` took. Not timed."""
