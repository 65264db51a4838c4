"""What the training loop needs from a framework."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from data_sharding import LoadedBatch
from hvdtrain.adapters.step_timer import SpanSink
from hvdtrain.algorithms.interval_sums import IntervalSums, NormTotals
from hvdtrain.algorithms.quantile_sketch import QuantileSketch
from hvdtrain.comm.communicator import Communicator
from hvdtrain.named_arrays import NO_STATE, State


class MeasureTotals(NamedTuple):
    """Sums of measures by their names, and over how many samples each of them goes."""

    values: dict[str, float]
    samples: dict[str, float]


def added_totals(totals: Sequence[MeasureTotals]) -> MeasureTotals:
    """Those of several workers together, which all have the same measures, or a single worker's as they are."""
    first, *others = totals
    if not others:
        return first
    return MeasureTotals(
        {name: sum(of.values.get(name, 0.0) for of in totals) for name in first.values},
        {name: sum(of.samples.get(name, 0.0) for of in totals) for name in first.samples},
    )


def totals_of(interval: IntervalSums, worker: int) -> MeasureTotals:
    """Those of one virtual worker."""
    rows = {name: rows[worker] for name, rows in interval.measures.items()}
    return MeasureTotals(
        {name: total for name, (total, _) in rows.items()}, {name: samples for name, (_, samples) in rows.items()}
    )


@dataclass(frozen=True)
class Sums:
    """This rank's totals since the last reading."""

    values: dict[str, float]  # for each of the task's measures, its sum over this rank's real samples
    allreduce_seconds: float  # how long steps waited for gradients or weights of other ranks
    skipped: int = 0  # updates that were skipped because their scaled gradients were not finite; the same on all ranks
    # mean norm of the reduced gradients before clipping over the updates, if it is asked for, or clipping or loss
    # scaling computed it anyway; with local SGD that of this rank's own gradients
    grad_norm: float | None = None
    grad_norm_peak: float | None = None  # the largest of these norms; None if `grad_norm` is None
    norms: NormTotals | None = None  # from which these two follow
    # seconds of the parts of steps, by their names in `step_timer.PARTS`; those that can be told apart
    parts: Mapping[str, float] = field(default_factory=dict)
    device_memory: int | None = None  # bytes that arrays on this rank's GPU took at most since the start; None on a CPU
    # share of the last moments in which this rank's GPU was busy, as NVML tells it, from 0 to 1; None on a CPU, or
    # where NVML cannot be asked
    device_use: float | None = None
    # for each of the measures, how many of this rank's real samples its sum is over; a name that is not here: all of
    # them
    samples: Mapping[str, float] = field(default_factory=dict)
    # with virtual workers: sums and samples of each of this rank's own, in order, which are then used
    by_worker: Sequence[MeasureTotals] = ()


class WorkerStates(Protocol):
    """What each virtual worker of this rank has made from its own samples.

    Attributes:
        count: virtual workers of the whole job.
        differ: they have trained since their mean was put into the model. The same on all ranks.
    """

    @property
    def count(self) -> int: ...

    @property
    def differ(self) -> bool: ...

    def states(self, comm: Communicator) -> list[State]:
        """What is saved of each virtual worker, in order. Collective."""

    def of(self, worker: int) -> State:
        """What one of them has."""

    def stamp(self) -> object:
        """For `changed_since`."""

    def changed_since(self, stamp: Any) -> list[str]:
        """Names of what in the model has been written since then."""

    def set_common(self, mean: State) -> None:
        """Put the mean of all into the model. Each virtual worker goes on with its own."""


class PassChecks(Protocol):
    """Repeats passes of virtual workers, and says which gradients they gave.

    Attributes: `names`: of the trained weights.
    """

    names: Sequence[str]

    def note(self, workers: Sequence[int]) -> None:
        """The next update is to note the gradients of these of this rank's virtual workers."""

    def noted(self) -> Mapping[int, NDArray[np.int64]]:
        """Of each of them, a checksum of each weight's gradient, in the order of `names`. Further updates note none."""

    def repeated(
        self, batch: LoadedBatch, worker: int, step: int, state: Mapping[str, NDArray[Any]] = NO_STATE
    ) -> NDArray[np.int64]:
        """The same checksums of a pass of any virtual worker, which leaves no trace. Called before update `step`.

        Args: `state`: what the virtual worker has for itself; of what is not in it, the pass finds what the model has.
        """

    def measured_twice(self, batch: LoadedBatch, worker: int) -> tuple[MeasureTotals, MeasureTotals, list[str]]:
        """What a virtual worker measures of a batch in evaluation, and once more, and the names of saved buffers that
        have changed meanwhile. Leaves no trace. Called where nothing else is measured since the last reading."""

    def begin_anew(self) -> bool:
        """The next repetition runs all of the task's Python code, as the first one did. Returns whether it would not do
        so anyway, because a graph was made of that code."""


class Adapter(Protocol):
    """One model in training, in one framework, on one rank. Steps return before the device has finished them.

    Attributes:
        model: the framework's own object; of a pipeline, what this rank has of it.
        stage: of a pipeline, which part of the model this rank has, from 0; None: all of it.
        counts: this rank measures the samples that it is given; other stages of its pipeline are given the same ones.
        worker_states: what each virtual worker of this rank has for itself; None: there are no virtual workers.
        pass_checks: repeats their passes; None likewise.
    """

    @property
    def model(self) -> Any: ...

    @property
    def stage(self) -> int | None: ...

    @property
    def counts(self) -> bool: ...

    @property
    def worker_states(self) -> WorkerStates | None: ...

    @property
    def pass_checks(self) -> PassChecks | None: ...

    def begin_epoch(self) -> None:
        """Called before each EpochStarted: all layers train, whatever user code did to them in the epoch before."""

    def take_changes(self, comm: Communicator) -> None:
        """Called after each EpochStarted: train what user code has unfrozen. Collective.

        Raises `HvdtrainError`: on all ranks; user code has changed something that must not change, or not on all ranks.
        """

    def train_step(self, batch: LoadedBatch, step: int, lr: float) -> None:
        """One update with the gradient of the mean loss over the global batch. Collective.

        Args: `step`: the update's number since the start of training, from 0; random numbers depend on it.
        """

    def train_steps(self, batches: Sequence[LoadedBatch], step: int, lrs: Sequence[float]) -> None:
        """Updates `step`, `step` + 1, …, one for each batch, as by `train_step`, in one call where that is faster."""

    def eval_step(self, batch: LoadedBatch) -> None:
        """Measure without training. Not collective."""

    def eval_with_output(self, batch: LoadedBatch) -> dict[str, NDArray[Any]]:
        """As `eval_step`. Returns what the task predicts if its `predict` is not overridden, by the same forward pass.
        Raises UsageError: as `predict_step`."""

    def predict_step(self, batch: LoadedBatch) -> dict[str, NDArray[Any]]:
        """What the task predicts of a batch, in host memory; each array has one row for each row of the batch. Not
        collective. Raises UsageError: the task's predict() returned something else."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Inside, these three use the weights that are validated: their average, if there is one."""

    def read_sums(self) -> Sums:
        """Totals since the last call, waiting for the device; resets them."""

    def continue_sums(self, before: IntervalSums) -> None:
        """With virtual workers, after `read_sums`: the next totals are those of earlier updates, too, as if all had
        been measured in one interval."""

    def take_part_times(self) -> Mapping[str, QuantileSketch]:
        """How long each part of a step took in the steps since the last call."""

    def tell_parts(self, tell: SpanSink | None) -> None:
        """From now on `tell` receives each part of each step, where the host runs them; None ends that."""

    def gather_state(self, comm: Communicator, keeps: bool) -> bool:
        """Collect what ranks have parts of, before some of them call `state`, those with `keeps`. Collective.

        Returns:
            Whether there was anything: no rank has these arrays by itself, and they need more memory than training.
        """

    def state(self, earlier: Mapping[str, NDArray[Any]] = NO_STATE) -> State:
        """A copy of everything that training changes, in host memory.

        Args: `earlier`: a copy that nobody needs any more: its memory is used again.
        """

    def view_state(self) -> State:
        """The same to read at once: arrays are the training's own memory where that is the host's. Not to be kept."""

    def view_weights(self) -> State:
        """Return the weights and buffers of `view_state` alone."""

    def load_state(self, state: State) -> None:
        """Put back what `state` returned, here or on another rank: optimizer first, weights after."""

    def rank_local_state(self) -> State:
        """Arrays that may differ between ranks, such as BatchNorm's statistics, in the same order on all ranks.

        The mean of floating and complex numbers replaces them, and the first rank's arrays of everything else.
        Collective: weights that ranks update separately are averaged on the device first.
        """

    def load_rank_local_state(self, buffers: State) -> None:
        """Put back what `rank_local_state` returned, changed or not, or the model's own part of it, "model/…"."""

    def parameter_count(self) -> int:
        """Trainable parameters."""


class TunableAdapter(Adapter, Protocol):
    """An adapter whose exchange of gradients can be changed between steps.

    Attributes:
        compiles_buckets: whether the first step with other buckets compiles anew.
        threads: that compute, where they may be changed; else 0.
    """

    compiles_buckets: bool

    @property
    def threads(self) -> int: ...

    def set_threads(self, count: int) -> None:
        """Compute by `count` threads from now on, where `threads` is not 0."""

    def buckets(self, cap: int) -> tuple[int, ...]:
        """How many gradients each bucket holds if the largest has `cap` bytes; () where nothing can be chosen."""

    def set_bucket_cap(self, cap: int) -> None:
        """Exchange gradients in buckets of at most `cap` bytes from now on; the same on all ranks."""
