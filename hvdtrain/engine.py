"""THE training loop. It knows no framework: it drives an `Adapter`, a `Communicator` and two plans of records.

The order of events is documented in `hvdtrain.events` and tested.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from data_sharding import LoadedBatch
from hvdtrain import events
from hvdtrain.adapters.interface import Adapter
from hvdtrain.checkpoints import CheckpointWriter
from hvdtrain.comm import Communicator
from hvdtrain.errors import HvdtrainError
from hvdtrain.meter import Meter
from hvdtrain.position import Position
from hvdtrain.schedule import Schedule
from hvdtrain.stop_vote import Asked, StopVote, never_asked
from hvdtrain.sync import assert_equal_weights, average_drifting


class Epoch(Protocol):
    """What the loop must know of a plan."""

    @property
    def steps(self) -> int:
        """Steps of an epoch: the same in all."""

    @property
    def num_records(self) -> int:
        """Records of an epoch, over all ranks."""


class Source(Protocol):
    """A data set cut into global batches, of which `loader` delivers this rank's slices."""

    def plan(self, epoch: int) -> Epoch:
        """How an epoch is cut into steps."""
        ...

    def loader(self, epoch: int, start_step: int) -> AbstractContextManager[Iterable[LoadedBatch]]:
        """Decoded slices of the epoch's steps, from `start_step` on."""
        ...


class Ledger(Protocol):
    """Keeps account of the records that training has used. Collective where it says so."""

    def start(self, step: int) -> None:
        """Training takes up after `step` updates. Collective."""

    def add(self, batch: LoadedBatch) -> None:
        """This rank was trained on `batch`."""

    def commit(self, step: int) -> None:
        """A checkpoint after update `step` follows. Collective."""


@dataclass(frozen=True)
class Limits:
    """How far and how often.

    Attributes:
        epochs: passes over the training data.
        max_steps: stop (with a checkpoint) after this many updates since the start of training; None: no limit.
        log_interval: updates between two `Logged`.
        checkpoint_interval: updates between two checkpoints inside an epoch; 0: only at the end of each epoch.
        max_masked: share of a data set's records that may be left out as damaged in one pass.
    """

    epochs: int
    max_steps: int | None = None
    log_interval: int = 50
    checkpoint_interval: int = 0
    max_masked: float = 1.0


@dataclass(frozen=True)
class Outcome:
    """What a run leaves behind.

    Attributes:
        step, epochs, samples_seen: done since the start of training.
        finished: whether all of it is done, the last validation too.
        metrics: of the last validation, or without validation data of the last training steps.
        weights_hash: equal on all ranks.
        stopped_by: what asked to stop, where that left something undone; else empty.
    """

    step: int
    epochs: int
    samples_seen: int
    finished: bool
    metrics: dict[str, float]
    weights_hash: str
    stopped_by: str = ""


class Engine:
    """Trains from a `Position` to the limits.

    Args:
        adapter: the model; already equal on all ranks.
        comm: the other ranks.
        train, validation: the data.
        schedule: learning rates.
        limits: how far and how often.
        checkpoints: where to save.
        ledger: told of every batch, and before every save.
        callbacks: told of every event, in this order.
        asked: whether this rank was asked to stop; if any was, all stop together soon, with a checkpoint.
    """

    def __init__(
        self,
        adapter: Adapter,
        comm: Communicator,
        train: Source,
        validation: Source | None,
        schedule: Schedule,
        limits: Limits,
        checkpoints: CheckpointWriter,
        ledger: Ledger,
        callbacks: Sequence[events.Callback],
        asked: Asked = never_asked,
    ) -> None:
        self._adapter = adapter
        self._comm = comm
        self._train = train
        self._validation = validation
        self._schedule = schedule
        self._limits = limits
        self._checkpoints = checkpoints
        self._ledger = ledger
        self._callbacks = callbacks
        self._steps_per_epoch = train.plan(0).steps
        self._meter = Meter(adapter, comm)
        self._metrics: dict[str, float] = {}
        self._masked = 0
        self._vote = StopVote(comm, asked)
        self._cut_short = False

    def run(self, start: Position, saved: bool = False, unvalidated: bool = False) -> Outcome:
        """Train. The arguments are the same on all ranks.

        Args:
            start: where training stands.
            saved: whether the newest checkpoint is of `start`.
            unvalidated: whether `start` is the end of an epoch whose validation was stopped.

        Raises:
            HvdtrainError: the loss is not finite (the same on all ranks).
            PeerError: another rank ended.
        """
        total = self._limits.epochs * self._steps_per_epoch
        self._tell(events.RunStarted(start.step, total, self._steps_per_epoch, self._limits.epochs))
        self._ledger.start(start.step)
        last = total if self._limits.max_steps is None else min(total, self._limits.max_steps)
        self._cut_short = self._vote.open()
        position = start if self._cut_short else self._train_to(last, start, unvalidated)
        if self._cut_short and position == start and not saved:
            average_drifting(self._comm, self._adapter)
            self._save(start)
        self._vote.close()
        stopped_by = self._vote.reason() if self._cut_short else ""
        digest = assert_equal_weights(self._comm, self._adapter.state(), "After training")
        finished = position.step >= total and not self._cut_short
        self._tell(events.RunEnded(position.step, position.samples_seen, finished))
        epochs = position.step // self._steps_per_epoch
        return Outcome(position.step, epochs, position.samples_seen, finished, self._metrics, digest, stopped_by)

    def _train_to(self, last: int, start: Position, unvalidated: bool) -> Position:
        position = start
        if unvalidated or start.step >= last:  # or resumed where nothing is left to train
            self._evaluate(start.step)
        if unvalidated and not self._cut_short:
            self._tell(events.EpochEnded((start.step - 1) // self._steps_per_epoch, start.step))
        while position.step < last and not self._vote.decided:
            position = self._run_epoch(position, last)
        self._cut_short = self._cut_short or position.step < last
        return position

    def _run_epoch(self, start: Position, last: int) -> Position:
        """From `start` to the end of its epoch, or to update `last` if that comes first."""
        epoch = start.step // self._steps_per_epoch
        self._tell(events.EpochStarted(epoch))
        end = min(last, (epoch + 1) * self._steps_per_epoch)
        position = self._train_steps(epoch, start, end)
        if self._vote.decided:
            self._cut_short = True
            average_drifting(self._comm, self._adapter)
        else:
            self._evaluate(position.step)
        if position.step % self._steps_per_epoch == 0 and not self._cut_short:
            self._tell(events.EpochEnded(epoch, position.step))
        self._save(position)
        return position

    def _train_steps(self, epoch: int, start: Position, end: int) -> Position:
        position = start
        self._masked = 0
        self._meter.start()
        with self._train.loader(epoch, start.step % self._steps_per_epoch) as loader:
            for batch in islice(self._meter.timed(loader), end - start.step):
                self._adapter.train_step(batch, position.step, self._schedule.lr(position.step))
                self._meter.count(batch)
                self._ledger.add(batch)
                position = position.after(batch.global_weight)
                stop = self._vote.after_step()
                self._after_step(epoch, position, is_last=stop or position.step == end)
                if stop:
                    break
        return position

    def _after_step(self, epoch: int, position: Position, is_last: bool) -> None:
        self._tell(events.StepEnded(epoch, position.step))
        save_now = bool(self._limits.checkpoint_interval) and position.step % self._limits.checkpoint_interval == 0
        if is_last or save_now or position.step == 1 or position.step % self._limits.log_interval == 0:
            self._log(epoch, position.step)
        if save_now and not is_last:  # after the last step follow evaluation, unless stopped, and the epoch's own save
            average_drifting(self._comm, self._adapter)  # rank 0's state, which is saved, must stand for all
            self._save(position)

    def _log(self, epoch: int, step: int) -> None:
        reading = self._meter.read("training")
        self._masked += reading.masked
        _require_few_masked(self._masked, self._train.plan(epoch).num_records, self._limits.max_masked, "training")
        _require_finite(reading.values["loss"], "training", step)
        if self._validation is None:
            self._metrics = reading.values
        self._tell(
            events.Logged(
                epoch=epoch,
                step=step,
                lr=self._schedule.lr(step - 1),
                samples=reading.samples,
                masked=reading.masked,
                samples_per_second=reading.samples_per_second,
                values=reading.values,
                rank_seconds=reading.rank_seconds,
            )
        )

    def _evaluate(self, step: int) -> None:
        average_drifting(self._comm, self._adapter)
        if self._validation is None:
            return
        epoch = max(0, step - 1) // self._steps_per_epoch
        self._tell(events.EvalStarted(epoch, step))
        begin = time.perf_counter()
        self._meter.start()
        plan = self._validation.plan(0)
        with self._validation.loader(0, 0) as loader:
            for done, batch in enumerate(loader, start=1):
                self._adapter.eval_step(batch)
                self._meter.count(batch)
                if self._vote.after_step() and done < plan.steps:
                    self._cut_short = True  # a part says nothing: the run that continues validates anew
                    return
        reading = self._meter.read("validation")
        records = plan.num_records
        _require_few_masked(reading.masked, records, self._limits.max_masked, "validation")
        _require_finite(reading.values["loss"], "validation", step)
        self._metrics = reading.values
        self._tell(events.Evaluated(epoch, step, reading.samples, time.perf_counter() - begin, reading.values))

    def _save(self, position: Position) -> None:
        begin = time.perf_counter()
        self._ledger.commit(position.step)
        path = self._checkpoints.save(self._adapter.state, position)
        seconds = time.perf_counter() - begin
        self._meter.exclude_checkpoint(seconds)
        self._tell(events.CheckpointSaved(position.step, path, seconds))

    def _tell(self, event: events.Event) -> None:
        for callback in self._callbacks:
            callback(event)


def _require_finite(loss: float, what: str, step: int) -> None:
    """`loss` is reduced, so all ranks raise or none does."""
    if not math.isfinite(loss):
        raise HvdtrainError(
            f"The {what} loss is {loss} at step {step}.",
            "Further steps would only spread it through the weights; checkpoints from before are still good.",
            "lower --lr, lengthen --warmup-epochs, or look for bad values in the data.",
        ).on_all_ranks()


def _require_few_masked(masked: int, records: int, share: float, what: str) -> None:
    """`masked` is reduced, so all ranks raise or none does."""
    if masked > share * records:
        raise HvdtrainError(
            f"{masked} of the {records} {what} records are damaged and were left out.",
            f"That is more than the share of {share:g} that --data.max-corrupt allows.",
            "restore the files (the log names each record), or allow a larger share.",
        ).on_all_ranks()
