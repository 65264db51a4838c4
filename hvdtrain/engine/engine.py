"""THE training loop, for every framework. The order of its events is documented in `hvdtrain.engine.events`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from data_sharding import LoadedBatch
from hvdtrain import activity
from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.algorithms.early_stopping import EarlyStopping
from hvdtrain.algorithms.lr_schedule import Schedule
from hvdtrain.checkpoints.format import Position
from hvdtrain.checkpoints.writer import CheckpointWriter
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.horovod_connections import open_connections
from hvdtrain.engine import events
from hvdtrain.engine.failure_notice import tell_failure
from hvdtrain.engine.limits import RunLimits, RunResult
from hvdtrain.engine.loss_guard import LossGuard
from hvdtrain.engine.many_stragglers import ManyStragglers
from hvdtrain.engine.meter import Meter, rank_times
from hvdtrain.engine.noted_passes import NotedPasses
from hvdtrain.engine.saves import SavePolicy, Saves
from hvdtrain.engine.source import Ledger, ReadAhead, Source
from hvdtrain.engine.state_sync import (
    average_changed_buffers,
    average_rank_local_state,
    model_buffers,
    weights_in_common,
)
from hvdtrain.engine.stop_vote import StopRequest, StopVote, never_asked
from hvdtrain.engine.validator import Validations, Validator
from hvdtrain.slowness.causes import Straggler
from hvdtrain.slowness.gauge import Gauge
from hvdtrain.slowness.stragglers import Stragglers


@dataclass(eq=False)
class Engine:
    """Trains from a `Position` to the limits."""

    adapter: Adapter  # the model; already equal on all ranks
    comm: Communicator
    train: Source
    validation: Mapping[str, Source]  # by the names of sets; empty: no validation
    schedule: Schedule
    limits: RunLimits
    checkpoints: CheckpointWriter
    ledger: Ledger
    callbacks: Sequence[events.Callback]  # receive every event, in this order
    asked: StopRequest = never_asked  # whether this rank is to stop; then all stop soon, with a checkpoint
    early_stopping: EarlyStopping = EarlyStopping()
    on_result: Callable[[RunResult], None] | None = None  # receives the result before RunEnded: callbacks may fail
    save_policy: SavePolicy = SavePolicy()
    hosts: Sequence[str] = ()  # of each rank, for people; () where they are not known
    summarizes_ranks: bool = False  # events have summaries of all ranks in the place of lists
    noted_passes: NotedPasses | None = None  # what single virtual workers compute

    def __post_init__(self) -> None:
        plan = self.train.plan(0)  # all epochs have as many steps and records
        self._steps_per_epoch, self._records = plan.steps, plan.num_records
        sets = self.validation.items()
        hosts = self.hosts if self.summarizes_ranks else None
        validators = [
            Validator(self.adapter, self.comm, source, self.limits, name, summary_hosts=hosts) for name, source in sets
        ]
        self._validations = Validations(validators, self.early_stopping, plan.steps)
        last = self.limits.last_step(self.limits.epochs * plan.steps)
        self._read_ahead = ReadAhead(self.train, [*self.validation.values()], plan.steps, last)
        self._meter = Meter(self.adapter, self.comm, Gauge(open_connections), hosts)
        self._guard = LossGuard(self.comm, self.train, "training")
        self._saves = Saves(
            self.adapter, self.checkpoints, self.ledger, self._meter.watch, self._emit, self.save_policy
        )
        self._vote = StopVote(self.comm, self.asked, self._saves.report)
        self._metrics: Mapping[str, float] = {}
        self._cut_short = False
        self._changed_since_save = False  # by the last validation, which may change buffers

    def run(self, start: Position, saved: bool = False) -> RunResult:
        """Train from `start`. The arguments are the same on all ranks; `saved`: whether the newest checkpoint is of
        `start`. Raises HvdtrainError: the loss is not finite (the same on all ranks); PeerError: another rank ended."""
        self._step = self._saves.checks.known_equal = start.step
        try:
            return self._run(start, saved)
        except BaseException as error:
            self.checkpoints.abandon(events.FAILURE_SECONDS)
            tell_failure(self.callbacks, events.RunFailed(self._step, error))
            raise
        finally:
            self._read_ahead.close()

    def _run(self, start: Position, saved: bool) -> RunResult:
        start = self._validations.resume_from(start)
        total = self.limits.epochs * self._steps_per_epoch
        self._emit(events.RunStarted(start.step, total, self._steps_per_epoch, self.limits.epochs))
        self.ledger.start(start.step)
        self._stragglers = Stragglers(self.hosts, start.step)
        self._many_stragglers = ManyStragglers(self.comm, self.hosts, start.step)
        self._meter.step_times.start()
        self._cut_short = self._vote.open()
        position = start if self._cut_short else self._train_to(self.limits.last_step(total), start, saved)
        if self._cut_short and position == start and not saved:
            average_rank_local_state(self.comm, self.adapter)
            self._saves.begin(start, self._validations.best)
        self._vote.close()
        self._saves.require_last()
        activity.now.begin("end", position.step)
        stopped_by = self._vote.reason() if self._cut_short else ""
        stopped_early = None if self._cut_short else self._validations.stopped_early(position, total)
        if stopped_early is not None and not self._validations.end_early(start):
            self._emit(stopped_early)
        digest = weights_in_common(self.comm, self.adapter, "After training", self._saves.checks.known_equal)
        finished = (position.step >= total or stopped_early is not None) and not self._cut_short
        result = RunResult(
            step=position.step,
            epochs=position.step // self._steps_per_epoch,
            samples_seen=position.samples_seen,
            finished=finished,
            metrics=self._metrics,
            weights_hash=digest,
            stopped_by=stopped_by,
            best=self._validations.best,
            stopped_early=stopped_early,
            **self._step_times(),
            stragglers=(self._many_stragglers if self.summarizes_ranks else self._stragglers).found,
        )
        if self.on_result is not None:
            self.on_result(result)
        self._emit(events.RunEnded(position.step, position.samples_seen, finished, stopped_by))
        return result

    def _train_to(self, last: int, start: Position, saved: bool) -> Position:
        position = start
        unvalidated = self._validations.owed_at(start)
        if unvalidated or start.step >= last or self._validations.end_early(start):
            position = self._evaluate(start)  # also where it was resumed and nothing is left to train
        if unvalidated and not self._cut_short:
            self._emit(events.EpochEnded((start.step - 1) // self._steps_per_epoch, start.step))
            if saved and not self._changed_since_save:
                self._saves.save_history(position, self._validations.best)
            else:
                self._saves.begin(position, self._validations.best)
        while position.step < last and not self._vote.decided and not self._validations.end_early(position):
            position = self._run_epoch(position, last)
        self._cut_short = self._cut_short or (position.step < last and not self._validations.end_early(position))
        return position

    def _run_epoch(self, start: Position, last: int) -> Position:
        """From `start` to the end of its epoch, or to update `last` if that comes first."""
        epoch = start.step // self._steps_per_epoch
        self.adapter.begin_epoch()
        self._emit(events.EpochStarted(epoch))
        self.adapter.take_changes(self.comm)
        end = min(last, (epoch + 1) * self._steps_per_epoch)
        position = self._train_steps(epoch, start, end)
        if self._vote.decided:
            self._cut_short = True
            average_rank_local_state(self.comm, self.adapter)
        else:
            position = self._evaluate(position)
        if position.step % self._steps_per_epoch == 0 and not self._cut_short:
            self._emit(events.EpochEnded(epoch, position.step))
        self._saves.begin(position, self._validations.best)
        return position

    def _train_steps(self, epoch: int, start: Position, end: int) -> Position:
        position = start if start.step % self._steps_per_epoch else replace(start, masked=0)
        self._meter.start(start.interval)
        activity.now.reads = self.train.reading
        activity.now.begin("data", start.step)
        with self._meter.watch.span("data"):  # a pipe is waited for here
            opened = self.train.loader(epoch, start.step % self._steps_per_epoch)
        with opened as loader:
            for batches in self._calls(self._meter.waits(loader), start.step, end):
                activity.now.begin("step", position.step)
                lrs = [self.schedule.lr(position.step + i) for i in range(len(batches))]
                after_update = self._begin_notes(batches[0], epoch, position.step)
                self.adapter.train_steps(batches, position.step, lrs)
                after_update()
                position, stop = self._count(batches, epoch, position, end)
                if stop:
                    loader.abandon()  # storage that hangs must not keep the save waiting
                    break
                activity.now.begin("data", position.step)
        return position

    def _begin_notes(self, batch: LoadedBatch, epoch: int, step: int) -> Callable[[], None]:
        """What is to be called after update `step` (from 0), which trains on `batch`."""
        passes = self.noted_passes
        due = None if passes is None else passes.begin(batch, epoch, step % self._steps_per_epoch, step)
        return due or (lambda: None)

    def _calls(self, batches: Iterator[LoadedBatch], step: int, end: int) -> Iterator[list[LoadedBatch]]:
        """The batches of each call of the adapter, from update `step` to `end`."""
        while step < end and (call := list(islice(batches, self.limits.next_call(step, end)))):
            step += len(call)
            if step == end:
                self._read_ahead.after_training(step)
            yield call

    def _count(self, batches: Sequence[LoadedBatch], epoch: int, position: Position, end: int) -> tuple[Position, bool]:
        """After a call of the adapter: where training is, and whether all ranks stop there."""
        self._meter.step_times.ended(len(batches))
        for batch in batches:
            self._meter.count(batch)
            self._guard.add(batch)
            if self.adapter.counts:
                self.ledger.add(batch)
        stop = self._vote.after_step(len(batches))
        self._saves.collect(self._vote.saves_ended)
        last = position.step + len(batches)
        for batch in batches:
            position = position.after(batch.global_weight)
            is_newest = position.step == last
            position = self._after_step(
                epoch,
                position,
                is_last=is_newest and (stop or last == end),
                save_is_due=is_newest and self._vote.save_is_due,
            )
        return position, stop

    def _after_step(self, epoch: int, position: Position, is_last: bool, save_is_due: bool) -> Position:
        step = self._step = position.step
        self._emit(events.StepEnded(epoch, step))
        if is_last or save_is_due or self.limits.logs_after(step):
            position = self._in_interval(self._log(epoch, position), is_last)
        self._saves.checks.after_update(step, self.limits)
        if self.limits.hashes_after(step):
            of_workers = () if self.noted_passes is None else self.noted_passes.digests
            self._emit(events.WeightsHashed(step, self._saves.checks.checksums(), of_workers))
        # After the last step follow evaluation, unless stopped, and the epoch's own save.
        if is_last or not (save_is_due or self.limits.saves_after(step)):
            return position
        average_rank_local_state(self.comm, self.adapter)  # only rank 0's state is saved, so it must be that of all
        if save_is_due or not self._saves.skip(step):
            self._saves.begin(position, self._validations.best)
        return position

    def _in_interval(self, position: Position, is_last: bool) -> Position:
        """After a line of metrics: with what virtual workers have measured, where the line came early, because of a
        stop or a save by the clock. Collective."""
        if self.limits.logs_after(position.step) or position.step % self._steps_per_epoch == 0:
            return position
        position = replace(position, interval=self._meter.unfinished())
        if not is_last:  # else evaluation begins, with sums of its own
            self._meter.start(position.interval)
        return position

    def _log(self, epoch: int, position: Position) -> Position:
        reading, step = self._meter.reduce("training"), position.step
        position = replace(position, masked=position.masked + reading.masked)
        self.limits.require_few_masked(position.masked, self._records, "training")
        self._guard.check(reading, epoch, step)
        if not self.validation:
            self._metrics = reading.values
        self._emit(events.Logged(**vars(reading), epoch=epoch, step=step, lr=self.schedule.lr(step - 1)))
        for straggler in self._slow(reading, step):
            self._emit(events.StragglerFound(step, straggler))
        return position

    def _slow(self, reading: events.ReducedMetrics, step: int) -> list[Straggler]:
        """Who is found to keep the others waiting. Collective where ranks are summarized."""
        if self.adapter.stage is not None:
            return []  # the stages of a pipeline take as long as their layers do
        if reading.summary is None:
            return self._stragglers.add(step, rank_times(reading))
        return self._many_stragglers.add(step, self._meter.own_times(reading), reading.summary)

    def _evaluate(self, position: Position) -> Position:
        """Validate; at the end of an epoch the position then knows how that went."""
        average_rank_local_state(self.comm, self.adapter)
        if not self.validation:
            return position
        step, epoch = position.step, max(0, position.step - 1) // self._steps_per_epoch
        self._emit(events.EvalStarted(epoch, step))
        before = model_buffers(self.adapter)  # a model may change them in evaluation, too
        with self._meter.watch.span("validation") as span:
            measured = self._validations.measure(step, self._vote, partial(self._read_ahead.after_set, step))
        if measured is None or not self._validations.owed_at(position):
            self.adapter.load_rank_local_state(before)  # a run that goes on from here repeats it, or has none
        else:
            self._changed_since_save = average_changed_buffers(self.comm, self.adapter, before)
        if measured is None:
            self._cut_short = True
            return position
        self._metrics = measured.values
        position = self._validations.note(position, epoch, measured.values)
        named = {name: samples for name, samples in measured.samples.items() if name}
        samples, best = sum(measured.samples.values()), self._validations.best
        about = epoch, step, samples, span.seconds, measured.values, best
        self._emit(events.Evaluated(*about, measured.rank_seconds, named, measured.summary, measured.own_seconds))
        return position

    def _step_times(self) -> dict[str, Any]:
        """Of the result. Collective."""
        if self.summarizes_ranks:
            return {"step_summaries": self._meter.step_times.summarized(self.hosts)}
        return {"step_times": self._meter.step_times.summaries()}

    def _emit(self, event: events.Event) -> None:
        for callback in self.callbacks:
            callback(event)
