"""Which records form each step of an epoch, and which of them each rank reads."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from data_sharding.catalog import Catalog
from data_sharding.errors import PlanError
from data_sharding.permutation import Permutation

Shuffle = Literal["global", "none"]
Tail = Literal["mask", "drop"]


class StepBatch(NamedTuple):
    """Records of one step, or of one rank's slice of it.

    Attributes:
        ids: int64[k] record ids; a masked slot holds the id of some real record, so that it can be read and decoded.
        weights: float32[k], 1 for a real record, 0 for a masked slot.
    """

    ids: NDArray[np.int64]
    weights: NDArray[np.float32]


@dataclass(frozen=True)
class ShardPlan:
    """The batches of one epoch: a pure function of its fields, the same for every number of ranks.

    Attributes:
        num_records: N, records in the data set.
        global_batch: G, slots of a step over all ranks.
        seed, epoch: select the order; any integer seed, epoch >= 0.
        shuffle: "global" draws every position from the whole data set; "none" keeps the catalog's order.
        tail: when G does not divide N, "mask" fills the last step with slots of weight 0, "drop" leaves out the last
            N mod G records of the order.
        data_fingerprint: the catalog's.

    Raises:
        PlanError: no records, G < 1, epoch < 0, an unknown option, or `tail="drop"` with G > N.
    """

    num_records: int
    global_batch: int
    seed: int
    epoch: int
    shuffle: Shuffle = "global"
    tail: Tail = "mask"
    data_fingerprint: str = ""

    def __post_init__(self) -> None:
        _check_options(self)

    @classmethod
    def for_catalog(
        cls,
        catalog: Catalog,
        *,
        global_batch: int,
        seed: int,
        epoch: int,
        shuffle: Shuffle = "global",
        tail: Tail = "mask",
    ) -> Self:
        """Plan one epoch over a catalog; see the class for the arguments and errors."""
        return cls(len(catalog), global_batch, seed, epoch, shuffle, tail, catalog.fingerprint)

    @property
    def steps(self) -> int:
        """Steps of the epoch: ceil(N / G) with masking, floor(N / G) with dropping."""
        whole, rest = divmod(self.num_records, self.global_batch)
        return whole + (self.tail == "mask" and rest > 0)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of what must stay equal for a position to keep its meaning: data, N, G, seed, shuffle, tail.

        Neither the epoch, which is part of the position, nor the number of ranks, which changes nothing.
        """
        fields = (self.data_fingerprint, self.num_records, self.global_batch, self.seed, self.shuffle, self.tail)
        return hashlib.sha256(repr(("data_sharding.plan/1", *fields)).encode()).hexdigest()

    def batch(self, step: int) -> StepBatch:
        """The whole global batch of a step: ids int64[G], weights float32[G].

        Raises:
            PlanError: the step is outside [0, steps).
        """
        return self.shard(0, 1, step)

    def shard(self, rank: int, size: int, step: int) -> StepBatch:
        """Rank r's contiguous slice [r*G//W, (r+1)*G//W) of the global batch of a step, for W ranks.

        Its length is the same in every step, and differs by at most one between ranks.

        Raises:
            PlanError: the step is outside [0, steps), the rank outside [0, size), or G < W.
        """
        ids, weights = self.shards(rank, size, range(step, step + 1))
        return StepBatch(ids[0], weights[0])

    def shards(self, rank: int, size: int, steps: range) -> StepBatch:
        """`shard` for several steps at once, as rows: ids int64[s, k], weights float32[s, k].

        Costs little more than one step does: small arrays cost their number of numpy calls.

        Raises:
            PlanError: as `shard`, or the range is empty.
        """
        for step in (min(steps, default=-1), max(steps, default=-1)):
            self._check_slice(rank, size, step)
        first, end = rank * self.global_batch // size, (rank + 1) * self.global_batch // size
        positions = np.add.outer(np.array(steps, np.int64) * self.global_batch, np.arange(first, end))
        weights = (positions < self.num_records).astype(np.float32)
        return StepBatch(self._records(positions % self.num_records), weights)

    def global_weight(self, step: int) -> float:
        """Real (unmasked) records of a step over all ranks: what a sum over the global batch is divided by.

        Raises:
            PlanError: the step is outside [0, steps).
        """
        self._check_slice(0, 1, step)
        return float(min(self.global_batch, self.num_records - step * self.global_batch))

    def step_at(self, position: int) -> int:
        """The step that begins when `position` samples of the epoch have been taken: position / G.

        The epoch's end, steps * G, gives `steps`.

        Raises:
            PlanError: the position is not the beginning of a step of this plan.
        """
        step, rest = divmod(position, self.global_batch)
        if rest or not 0 <= step <= self.steps:
            raise PlanError(
                f"Position {position} was asked for.",
                f"Steps of this plan begin at multiples of {self.global_batch} up to {self.steps * self.global_batch}.",
                "resume with the --global-batch-size and the data that the position was written with.",
            )
        return step

    @functools.cached_property
    def _permutation(self) -> Permutation:
        return Permutation(self.num_records, self.seed, self.epoch)

    def _records(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._permutation(positions) if self.shuffle == "global" else positions

    def _check_slice(self, rank: int, size: int, step: int) -> None:
        if not 0 <= step < self.steps:
            raise PlanError(
                f"Step {step} was asked for.", f"The epoch has steps 0 to {self.steps - 1}.", "begin the next epoch."
            )
        if not 0 <= rank < size:
            raise PlanError(
                f"Rank {rank} of size {size} was asked for.", "Ranks count from 0 to size - 1.", "check the topology."
            )
        if self.global_batch < size:
            raise PlanError(
                f"The global batch of {self.global_batch} is smaller than the {size} ranks.",
                "Some ranks would have no record in any step.",
                f"set --global-batch-size to {size} or more, or start fewer ranks.",
            )


def _check_options(plan: ShardPlan) -> None:
    for name, value, valid in (("shuffle", plan.shuffle, get_args(Shuffle)), ("tail", plan.tail, get_args(Tail))):
        if value not in valid:
            raise PlanError(
                f"{name}={value!r} was asked for.",
                f"It can be {' or '.join(valid)}.",
                f"choose one of these for {name}.",
            )
    if plan.num_records < 1:
        raise PlanError("The data set has no records.", "An epoch needs at least one.", "check the data path.")
    if plan.epoch < 0:
        raise PlanError(f"Epoch {plan.epoch} was asked for.", "Epochs count from 0.", "use an epoch of 0 or more.")
    if plan.global_batch < 1:
        raise PlanError(
            f"The global batch size is {plan.global_batch}.",
            "A step needs at least one record.",
            "set --global-batch-size to 1 or more.",
        )
    if plan.tail == "drop" and plan.num_records < plan.global_batch:
        raise PlanError(
            f"The data set has {plan.num_records} records, fewer than one global batch of {plan.global_batch}.",
            "With the incomplete last step dropped, the epoch has no step.",
            "set a smaller --global-batch-size, or mask the tail.",
        )
