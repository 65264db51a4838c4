"""Decoded batches of one rank from its pipe, read ahead in the background, where all ranks' record counts are known."""

import weakref
from dataclasses import dataclass
from typing import Self

from data_sharding.checks import check_batch_fits, check_step
from data_sharding.errors import PlanError
from data_sharding.loading.decoding import Decode
from data_sharding.loading.shard_loader import LoadedBatch
from data_sharding.pipe.batches import BatchShape, PipeBatches
from data_sharding.pipe.pipe_reader import PipePass


@dataclass(frozen=True)
class PipeSteps:
    """Steps of an epoch whose ranks have unequal numbers of records; a pure function of its fields, equal on all ranks.

    Rank r of W fills k_r = (r+1)*G//W - r*G//W slots a step, as in `ShardPlan`. Where its n_r records have run out its
    slots have weight 0, so that every rank makes max over ranks of ceil(n_r / k_r) steps, no record counts twice, none
    is dropped, and the gradient of a step is the mean over the real records of all ranks.

    Attributes:
        records: n_r of each rank.
        global_batch: G, slots of a step over all ranks.

    Raises:
        PlanError: a rank has no record, or G < W.
    """

    records: tuple[int, ...]
    global_batch: int

    def __post_init__(self) -> None:
        empty = [rank for rank, count in enumerate(self.records) if count < 1]
        if empty or not self.records:
            raise PlanError(
                f"Rank {empty[0] if empty else 0} has no record.",
                "Even a masked slot needs a record that can be decoded.",
                "use fewer workers, or write the data to more files.",
            )
        check_batch_fits(self.global_batch, len(self.records))

    @property
    def num_records(self) -> int:
        """Records of an epoch, over all ranks."""
        return sum(self.records)

    @property
    def steps(self) -> int:
        """Steps of an epoch, the same for all ranks."""
        return max(-(-count // self.slots(rank)) for rank, count in enumerate(self.records))

    def slots(self, rank: int) -> int:
        """k_r: slots of a rank in every step."""
        return slots(rank, len(self.records), self.global_batch)

    def count(self, rank: int, step: int) -> int:
        """Real records of a rank in a step; its other slots are masked. PlanError for a step outside the epoch."""
        check_step(step, self.steps)
        width = self.slots(rank)
        return min(width, max(0, self.records[rank] - step * width))

    def global_weight(self, step: int) -> float:
        """Real records of a step over all ranks; at least 1. Errors as `count`."""
        return float(sum(self.count(rank, step) for rank in range(len(self.records))))

    def first_id(self, rank: int) -> int:
        """Id of a rank's first record of an epoch; the next ones follow in the order of its stream."""
        return sum(self.records[:rank])


def slots(rank: int, size: int, global_batch: int) -> int:
    """Slots of a step for one rank of `size`: they differ by at most one between ranks."""
    return (rank + 1) * global_batch // size - rank * global_batch // size


class PipeLoader:
    """Iterator over one rank's batches of one epoch whose record counts are known; a context manager.

    Slots past a rank's last record have weight 0 and repeat it. When that record has been taken the stream must end, or
    the loader raises. `global_weight` comes from all ranks' counts, so no collective is needed.

    Args:
        one: the open pass; closed with this loader, and then, as everywhere in pipe mode, the epoch is over.
        steps: counts of all ranks.
        decode, seed: as for `BatchShape`.
        rank: whose batches.
        start_step: first step to deliver. A pipe cannot be entered in the middle: what comes before is read and
            discarded.
        prefetch, timeout_s: as for `PipeBatches`.
    """

    def __init__(
        self,
        one: PipePass,
        steps: PipeSteps,
        decode: Decode,
        *,
        rank: int,
        seed: int | None = None,
        start_step: int = 0,
        prefetch: int = 2,
        timeout_s: float = 300.0,
    ) -> None:
        self._steps = steps
        self._batches = PipeBatches(
            one,
            BatchShape(decode, steps.slots(rank), seed, steps.first_id(rank)),
            steps.records[rank],
            start_step=start_step,
            steps=steps.steps,
            prefetch=prefetch,
            timeout_s=timeout_s,
        )
        self._prefetch = self._batches.prefetch
        self._ended = False
        weakref.finalize(self, self._prefetch.cancel)

    def __iter__(self) -> Self:
        if self._ended:
            raise read_to_its_end()
        return self

    def __next__(self) -> LoadedBatch:
        """The next batch; `ids` count the records of all ranks' streams, rank by rank, in the order of arrival.

        Errors as `PipePass.read`; and whatever `decode` raised.
        """
        self._prefetch.start()
        try:
            batch = self._prefetch.take()
        except StopIteration:
            self._ended = True
            raise
        return batch._replace(global_weight=self._steps.global_weight(batch.step))

    def abandon(self) -> None:
        """As `ShardLoader.abandon`. A pipe itself is never waited for at its close."""
        self._prefetch.abandon()

    def close(self) -> None:
        """Close the pass (early, if not at its end) and end the background threads. May be called twice."""
        self._batches.close()

    def __enter__(self) -> Self:
        self._prefetch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_to_its_end() -> PlanError:
    """The error for a second pass over a loader of one epoch, which would yield nothing."""
    return PlanError("The epoch has been read to its end.", "A pipe cannot be read again.", "make another loader.")
