"""What the engine tells callbacks, and in which order.

    RunStarted
    for epoch in epochs:
        EpochStarted
        for step in the epoch's steps:
            one update
            StepEnded
            WeightsHashed          every `hash_every` steps, where set
            Logged                 after the first step of all, every `log_interval` steps, before each checkpoint
            StragglerFound         after a Logged, where a rank or a link turns out to keep the others waiting
            Checkpoint…            every `checkpoint_interval` steps, where set, but not after the epoch's last step
        Logged                     again, where there are steps since the last one
        EvalStarted, Evaluated     where the task has validation data
        EpochEnded
        Checkpoint…
        StoppedEarly               instead of further epochs, where validation has not improved for `patience` epochs
    RunEnded                       also when `max_steps` ended the run early

Checkpoint… is CheckpointStarted and, when it is on disk, CheckpointDurable. In the background it is written while
further steps are trained, so that CheckpointDurable comes some events later, before one of these steps' StepEnded,
before the third next CheckpointStarted, or before RunEnded. A checkpoint that could not be written ends in
CheckpointFailed instead where --checkpoint-failure is warn; one that is left out is a CheckpointSkipped alone.

A run that resumes inside an epoch starts with that epoch's EpochStarted. `max_steps` inside an epoch ends it there:
Logged, EvalStarted, Evaluated, Checkpoint… and no EpochEnded. A run that resumes where nothing is left to train, or
after StoppedEarly, has RunStarted, EvalStarted, Evaluated, RunEnded. A run that fails
ends with RunFailed on the ranks that can still report it; also after RunEnded, where a callback failed at that, and
without RunStarted, where a sink cannot be opened. result.json is there before RunEnded.
A request to stop ends training after any step: Logged, Checkpoint…, RunEnded; or validation after any batch: no
Evaluated, Checkpoint…, RunEnded. The run that continues does such a validation first: EvalStarted, Evaluated,
EpochEnded, Checkpoint…. A request that came before the first step leads to RunStarted, Checkpoint… (unless resumed),
RunEnded.
Records are read ahead of events, over the ends of epochs too.
Except for RunFailed, every rank sees the same events in the same order; reduced values in them are equal on all ranks,
so a callback may decide from them, and may call a collective as long as it does so on every rank.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hvdtrain.algorithms.early_stopping import Best
from hvdtrain.measured import BuiltInMetrics, Seconds, SummarizedSeconds
from hvdtrain.rank_summary import RankSummary
from hvdtrain.slowness.causes import Pressure, Straggler


@dataclass(frozen=True, slots=True)
class RunStarted:
    """`step` updates of `total_steps` are already done (0 unless resumed)."""

    step: int
    total_steps: int
    steps_per_epoch: int
    epochs: int


@dataclass(frozen=True, slots=True)
class EpochStarted:
    epoch: int


@dataclass(frozen=True, slots=True)
class StepEnded:
    """`step` counts updates since the start of training, from 1: it is the number of updates done.

    With --steps-per-call the events of a call follow it, one for each of its updates.
    """

    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class WeightsHashed:
    """`checksums` are CRC-32s of all weights after update `step`, by name, without statistics of a rank's own samples
    such as BatchNorm's; `gradients` are those of each virtual worker's gradients in that update, () without such."""

    step: int
    checksums: Mapping[str, int]
    gradients: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class ReducedMetrics(BuiltInMetrics):
    """What the ranks have measured since the last reading. Equal on all ranks, except for `summary.own`.

    Attributes:
        values: mean of each of the task's measures over all samples of all ranks.
        samples: how many those are.
        rank_seconds: one entry per rank, in the order of ranks; () where ranks are summarized, as from 64 ranks on.
        summary: the same as a summary; None where there is one entry per rank.
        rank_pressure: what has kept each rank from its work, in the same order; () where no rank has looked.
        not_finite: ranks whose own sum of losses is NaN or infinite.
    """

    values: Mapping[str, float]
    samples: int
    rank_seconds: tuple[Seconds, ...]
    summary: SummarizedSeconds | None = None
    rank_pressure: tuple[Pressure, ...] = ()
    not_finite: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Logged(ReducedMetrics):
    """Reduced training values over the updates since the last Logged; with virtual workers, values and norms over those
    since the last one that no stop and no save by the clock has added."""

    epoch: int
    step: int
    lr: float


@dataclass(frozen=True, slots=True)
class StragglerFound:
    """For some seconds until update `step`, the others have waited for a rank or for a link. Told once for each."""

    step: int
    straggler: Straggler


@dataclass(frozen=True, slots=True)
class EvalStarted:
    epoch: int
    step: int


@dataclass(frozen=True)
class Evaluated:
    """Means over each whole validation set, each sample counted once.

    Attributes:
        samples: of all sets together.
        values: by measure, as "loss"; of sets with names "NAME/loss".
        best: the best validation since the start of training; of the same `step` if it is this one.
        rank_seconds: how long it took on each rank, in the order of ranks; its first batches may have been read before.
            () where ranks are summarized.
        sets: of each set with a name, how many samples its means are over.
    """

    epoch: int
    step: int
    samples: int
    seconds: float
    values: Mapping[str, float]
    best: Best | None = None
    rank_seconds: tuple[float, ...] = ()
    sets: Mapping[str, int] = field(default_factory=dict)
    summary: RankSummary | None = None  # of `rank_seconds`, where ranks are summarized
    own_seconds: float | None = None  # then: how long it took on this rank, which only this rank knows

    @property
    def is_best(self) -> bool:
        return self.best is not None and self.best.step == self.step


@dataclass(frozen=True, slots=True)
class EpochEnded:
    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class CheckpointStarted:
    """The state after update `step` is about to be saved."""

    step: int


@dataclass(frozen=True, slots=True)
class CheckpointDurable:
    """The checkpoint of update `step` is whole and on disk at `path`.

    Attributes:
        seconds: how long training waited for it.
        write_seconds: how long it took to write, for most of which training may have gone on.
        size: bytes of its arrays.
    """

    step: int
    path: Path
    seconds: float
    write_seconds: float = 0.0
    size: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """The checkpoint of update `step` could not be written, and training goes on without it."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointSkipped:
    """The checkpoint that was due after update `step` was left out, because an earlier one was still being written."""

    step: int


@dataclass(frozen=True, slots=True)
class StoppedEarly:
    """The last `patience` validations did not improve `metric` by more than `min_delta`. `epoch` was the last one."""

    epoch: int
    step: int
    metric: str
    patience: int
    min_delta: float

    @property
    def reason(self) -> str:
        """For people."""
        by = f" (by more than {self.min_delta:g})" if self.min_delta else ""
        validations = "1 validation" if self.patience == 1 else f"{self.patience} validations"
        return f"after epoch {self.epoch + 1}: no better {self.metric} in {validations}{by}"


@dataclass(frozen=True, slots=True)
class RunEnded:
    """`stopped_by` is what has asked to stop, and on which ranks; where it is empty and the run is not `finished`,
    `max_steps` has ended it."""

    step: int
    samples_seen: int
    finished: bool
    stopped_by: str = ""


FAILURE_SECONDS: Final = 2.0
"""Launchers end a job's other ranks a few seconds after the first one has failed; `hvdtrain launch` after 3."""


@dataclass(frozen=True, slots=True)
class RunFailed:
    """This rank's run ends with `error` after update `step`. Other ranks may be gone: call no collective.

    All callbacks together have `FAILURE_SECONDS`, in a thread of their own: then the run ends and the error is shown.
    """

    step: int
    error: BaseException


Event = (
    RunStarted
    | EpochStarted
    | StepEnded
    | WeightsHashed
    | Logged
    | StragglerFound
    | EvalStarted
    | Evaluated
    | EpochEnded
    | CheckpointStarted
    | CheckpointDurable
    | CheckpointFailed
    | CheckpointSkipped
    | StoppedEarly
    | RunEnded
    | RunFailed
)
Callback = Callable[[Event], None]
