"""How far a run goes, how often it logs and saves, and what it returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hvdtrain.algorithms.early_stopping import Best
from hvdtrain.algorithms.quantile_sketch import Quantiles
from hvdtrain.engine.events import StoppedEarly
from hvdtrain.errors import HvdtrainError
from hvdtrain.rank_summary import RankSummary
from hvdtrain.slowness.causes import Straggler


@dataclass(frozen=True)
class RunLimits:
    epochs: int  # passes over the training data
    max_steps: int | None = None  # updates since the start of training after which it stops; None: no limit
    log_interval: int = 50  # updates between two `Logged`
    checkpoint_interval: int = 0  # updates between two checkpoints inside an epoch; 0: only at the end of each epoch
    max_masked: float = 1.0  # share of a data set's records that may be left out as damaged in one pass
    steps_per_call: int = 1  # updates in one call of the adapter at most
    check_weights_every: int = 0  # updates between two comparisons of weights; 0: only checkpoints are compared
    hash_every: int = 0  # updates between two `WeightsHashed`; 0: there are none

    def last_step(self, total: int) -> int:
        """The update after which a run ends whose epochs have `total` updates."""
        return total if self.max_steps is None else min(total, self.max_steps)

    def saves_after(self, step: int) -> bool:
        return bool(self.checkpoint_interval) and step % self.checkpoint_interval == 0

    def logs_after(self, step: int) -> bool:
        """Whether a `Logged` is due: the first step of all says how long a step takes."""
        return step == 1 or step % self.log_interval == 0 or self.saves_after(step)

    def compares_after(self, step: int) -> bool:
        return bool(self.check_weights_every) and step % self.check_weights_every == 0

    def hashes_after(self, step: int) -> bool:
        return bool(self.hash_every) and step % self.hash_every == 0

    def next_call(self, step: int, end: int) -> int:
        """How many updates follow `step` in one call: up to `end`, or to what is due before."""
        for last in range(step + 1, min(step + self.steps_per_call, end)):
            if self.logs_after(last) or self.compares_after(last) or self.hashes_after(last):
                return last - step
        return max(1, min(self.steps_per_call, end - step))

    def require_few_masked(self, masked: int, records: int, what: str) -> None:
        """`masked` is reduced, so all ranks raise or none does."""
        if masked > self.max_masked * records:
            raise HvdtrainError(
                f"{masked} of the {records} {what} records are damaged or refused, and were skipped.",
                f"That is more than the share of {self.max_masked:g} that --data.max-corrupt allows.",
                "restore the files, or see why code refuses them (the log names each record), or allow a larger share.",
            ).on_all_ranks()


@dataclass(frozen=True)
class RunResult:
    step: int  # updates since the start of training
    epochs: int
    samples_seen: int
    finished: bool  # whether all of it is done, the last validation too, or as much as was worth waiting for
    metrics: Mapping[str, float]  # of the last validation, or without validation data of the last training steps
    weights_hash: str  # equal on all ranks
    stopped_by: str = ""  # what asked to stop, where that left something undone; else empty
    best: Best | None = None  # the best validation since the start of training
    stopped_early: StoppedEarly | None = None  # why a finished run has trained less than its epochs
    # Of each rank, how long the steps of this start and their parts took, by `step_times.NAMES`.
    step_times: Sequence[Mapping[str, Quantiles]] = field(default=(), compare=False)
    # The same where ranks are summarized: of each of these names, of each of its quantiles.
    step_summaries: Mapping[str, Mapping[str, RankSummary]] = field(default_factory=dict, compare=False)
    # Who has kept the others waiting in this start.
    stragglers: Sequence[Straggler] = field(default=(), compare=False)
