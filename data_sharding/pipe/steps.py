"""Steps of an epoch whose ranks have unequal numbers of records: as many as the longest needs, the rest masked."""

from __future__ import annotations

from dataclasses import dataclass

from data_sharding.checks import whole
from data_sharding.errors import PlanError


@dataclass(frozen=True)
class PipeSteps:
    """A pure function of its fields, equal on all ranks.

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
        if whole("global_batch", self.global_batch) < len(self.records):
            raise PlanError(
                f"The global batch of {self.global_batch} is smaller than the {len(self.records)} ranks.",
                "Some ranks would have no record in any step.",
                f"set --global-batch-size to {len(self.records)} or more, or start fewer ranks.",
            )

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
        """Real records of a rank in a step; its other slots are masked.

        Raises:
            PlanError: the step is outside [0, steps).
        """
        if not 0 <= step < self.steps:
            raise PlanError(
                f"Step {step} was asked for.", f"The epoch has steps 0 to {self.steps - 1}.", "begin the next epoch."
            )
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
