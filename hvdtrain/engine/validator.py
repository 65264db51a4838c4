"""Validation: the model measured on all validation records, and what follows from the history of such measurements."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from data_sharding import LoadedBatch
from hvdtrain import activity
from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.algorithms.early_stopping import Best, EarlyStopping, require_metric
from hvdtrain.checkpoints.format import Position
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import agree
from hvdtrain.comm.rank_reduction import reduce_ranks
from hvdtrain.engine.events import ReducedMetrics, StoppedEarly
from hvdtrain.engine.limits import RunLimits
from hvdtrain.engine.loss_guard import LossGuard
from hvdtrain.engine.meter import Meter
from hvdtrain.engine.source import Source
from hvdtrain.engine.stop_vote import StopVote
from hvdtrain.rank_summary import RankSummary
from hvdtrain.set_names import UNNAMED, in_set, set_of


@dataclass(eq=False)
class Validator:
    """Measures one set of records."""

    adapter: Adapter
    comm: Communicator
    source: Source
    limits: RunLimits
    name: str = UNNAMED  # of the set
    use: Callable[[LoadedBatch], None] | None = None  # measures a batch; None: as `Adapter.eval_step`
    summary_hosts: Sequence[str] | None = None  # as of `Meter`

    def __post_init__(self) -> None:
        self._what = f"validation {self.name}".rstrip()
        self._meter = Meter(self.adapter, self.comm, summary_hosts=self.summary_hosts)
        self._guard = LossGuard(self.comm, self.source, self._what)

    def measure(self, step: int, vote: StopVote, when_read: Callable[[], None]) -> ReducedMetrics | None:
        """Means over all records, after `step` updates; None where a request stopped it. Collective.

        A part says nothing: the run that continues validates again. `when_read` is called once the last batch is here,
        before the model has seen it. Raises HvdtrainError: on all ranks; the loss is not finite, or too many records
        are damaged.
        """
        plan, use = self.source.plan(0), self.use or self.adapter.eval_step
        self._meter.start()
        activity.now.reads = self.source.reading
        activity.now.begin("validation data", step)
        with self.adapter.evaluating(), self.source.loader(0, 0) as loader:
            for done, batch in enumerate(loader, start=1):
                activity.now.begin("validation step", step)
                if done == plan.steps:
                    when_read()
                use(batch)
                self._meter.count(batch)
                self._guard.add(batch)
                if vote.after_step() and done < plan.steps:
                    loader.abandon()  # as in training
                    return None
                activity.now.begin("validation data", step)
            reading = self._meter.reduce(self._what)
        self.limits.require_few_masked(reading.masked, plan.num_records, self._what)
        self._guard.check(reading, 0, step)
        return reading


@dataclass(frozen=True)
class Measured:
    """A validation of all sets. Equal on all ranks."""

    values: Mapping[str, float]  # mean of each measure, "loss", or "NAME/loss" of a set with a name
    samples: Mapping[str, int]  # of each set: how many the means are over
    rank_seconds: tuple[float, ...]  # how long it took on each rank, in the order of ranks
    summary: RankSummary | None = None  # of that, where ranks are summarized
    own_seconds: float | None = None  # then: of this rank

    @classmethod
    def of(cls, readings: Mapping[str, ReducedMetrics]) -> "Measured":
        """From the reading of each set, where each has one entry per rank."""
        seconds = zip(*([rank.total for rank in reading.rank_seconds] for reading in readings.values()), strict=True)
        return cls(*_means_of(readings), tuple(map(sum, seconds)))

    @classmethod
    def summarized(cls, readings: Mapping[str, ReducedMetrics], comm: Communicator, hosts: Sequence[str]) -> "Measured":
        """From summarized readings. Collective."""
        own = sum(reading.summary.own.total for reading in readings.values() if reading.summary is not None)
        reduced = reduce_ranks(comm, [own], "hvdtrain.validation.seconds", named=[0], hosts=hosts)
        return cls(*_means_of(readings), (), reduced.summaries[0], own)


def _means_of(readings: Mapping[str, ReducedMetrics]) -> tuple[dict[str, float], dict[str, int]]:
    """`Measured.values` and `Measured.samples`."""
    return (
        {in_set(name, key): value for name, reading in readings.items() for key, value in reading.values.items()},
        {name: reading.samples for name, reading in readings.items()},
    )


@dataclass(eq=False)
class Validations:
    """Which validation is owed, which one is the best, and whether they end training early."""

    validators: Sequence[Validator]  # one of each set; empty where the task has no validation data
    rule: EarlyStopping  # compares validations
    steps_per_epoch: int  # of training
    best: Best | None = None

    def resume_from(self, start: Position) -> Position:
        """`start`, without a history of another metric."""
        start = replace(start, history=self.rule.resume_from(start.history))
        self.best = start.history.best
        return start

    def owed_at(self, start: Position) -> bool:
        """Whether `start` is the end of an epoch whose validation was stopped."""
        at_end = start.step > 0 and start.step % self.steps_per_epoch == 0
        return bool(self.validators) and at_end and start.history.step != start.step

    def measure(self, step: int, vote: StopVote, when_read: Callable[[int], None]) -> Measured | None:
        """Measure each set as `Validator.measure`, one after the other. Collective. `when_read` is also told the number
        of the set whose last batch is here, from 0."""
        readings: dict[str, ReducedMetrics] = {}
        for number, validator in enumerate(self.validators):
            reading = validator.measure(step, vote, partial(when_read, number))
            if reading is None:
                return None
            readings[validator.name] = reading
        first = self.validators[0]
        if first.summary_hosts is None:
            return Measured.of(readings)
        return Measured.summarized(readings, first.comm, first.summary_hosts)

    def note(self, position: Position, epoch: int, values: Mapping[str, float]) -> Position:
        """`position` after a validation there. One that `max_steps` caused inside an epoch may be this run's best, but
        a run that goes on forgets it: without the interruption there would have been none."""
        history = self.rule.after(position.history, epoch, position.step, values)
        self.best = history.best
        return replace(position, history=history) if position.step % self.steps_per_epoch == 0 else position

    def end_early(self, position: Position) -> bool:
        """Whether no more is trained after `position`."""
        return self.rule.should_stop(position.history)

    def stopped_early(self, position: Position, total: int) -> StoppedEarly | None:
        """Why a training of `total` updates has ended at `position`; None where not because of validations."""
        rule = self.rule
        if rule.patience is None or not self.end_early(position) or position.step >= total:
            return None
        epoch = position.step // self.steps_per_epoch - 1
        return StoppedEarly(epoch, position.step, rule.metric, rule.patience, rule.min_delta)


def require_measured(adapter: Adapter, comm: Communicator, sets: Mapping[str, Source], metric: str) -> None:
    """Measure one batch, before training: only that tells which metrics a task has. Collective. Raises UsageError: on
    all ranks; `metric` is not among those of the `sets`, whose names it may begin with."""
    name, measure = set_of(metric, sets)
    with sets[name].loader(0, 0) as loader:
        adapter.eval_step(next(iter(loader)))
    measured = [in_set(name, each) for each in adapter.read_sums().values]
    agree(comm, lambda: require_metric(in_set(name, measure), measured), "hvdtrain.start.metric")
