"""Checkpoints as the loop sees them: begun after a step, durable some steps later, or refused on all ranks together."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hvdtrain import activity
from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.algorithms.checkpoint_interval import FIRST_GUESS_SECONDS, young_daly
from hvdtrain.algorithms.early_stopping import Best
from hvdtrain.checkpoints.format import Position
from hvdtrain.checkpoints.saved import Saved, failure_of
from hvdtrain.checkpoints.writer import COPIES, CheckpointWriter
from hvdtrain.engine import events
from hvdtrain.engine.source import Ledger
from hvdtrain.engine.weight_checks import WeightChecks
from hvdtrain.stopwatch import Stopwatch

_log = logging.getLogger("hvdtrain.run")


@dataclass(eq=False)
class Cadence:
    """Asks for a checkpoint whenever enough time has passed since the last one began."""

    seconds: float | None = None  # between two checkpoints; None: as Young and Daly advise, by cost and `mtbf`
    mtbf: float = 0.0  # mean seconds between failures of the job
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._last = self.clock()  # when one has begun, or was asked for
        self._cost, self._write_seconds = FIRST_GUESS_SECONDS, 0.0

    @property
    def interval(self) -> float:
        """Seconds between two checkpoints. They do not overlap: the disk needs `write_seconds` for each."""
        return max(self._write_seconds, young_daly(self._cost, self.mtbf) if self.seconds is None else self.seconds)

    def asks(self) -> bool:
        """Whether a checkpoint is due; true once in an interval, as what is asked for begins some steps later."""
        now = self.clock()
        due = now - self._last >= self.interval
        if due:
            self._last = now
        return due

    def began(self) -> None:
        """A checkpoint has begun, asked for or not."""
        self._last = self.clock()

    def ended(self, cost: float, write_seconds: float) -> None:
        """It is written: training waited for it for `cost` seconds, and writing took `write_seconds`."""
        self._cost, self._write_seconds = cost, write_seconds


@dataclass(frozen=True)
class SavePolicy:
    in_background: bool = False  # training goes on while a checkpoint is written; False: it waits
    skips: bool = False  # a checkpoint that is due by its number of updates while another one is written
    goes_on: bool = False  # training goes on without a checkpoint that could not be written
    cadence: Cadence | None = None  # asks for checkpoints by the clock; None: nothing does


@dataclass(eq=False)
class Saves:
    """Begins checkpoints and tells what became of them. Collective, but for `report`."""

    adapter: Adapter
    writer: CheckpointWriter
    ledger: Ledger
    watch: Stopwatch
    emit: Callable[[events.Event], None]
    policy: SavePolicy
    _waited: dict[int, float] = field(default_factory=dict)
    _last_failure: Saved | None = None  # of the checkpoint that was collected last

    def __post_init__(self) -> None:
        self.checks = WeightChecks(self.writer.comm, self.adapter, self.finish)  # compares the weights that are saved

    def report(self) -> tuple[bool, int]:
        """Whether the clock asks for a checkpoint, and how many have ended: what this rank knows, for the vote."""
        cadence, is_root = self.policy.cadence, self.writer.comm.topology.is_root
        return is_root and cadence is not None and cadence.asks(), self.writer.ended()

    def skip(self, step: int) -> bool:
        """Whether the checkpoint that is due after update `step` is left out."""
        skips = self.policy.skips and self.writer.under_way > 0
        if skips:
            self.emit(events.CheckpointSkipped(step))
        return skips

    def begin(self, position: Position, best: Best | None) -> None:
        """Save the state at `position`; durable only after `finish`, or where `collect` says so."""
        while self.writer.under_way >= COPIES:
            self._collect_one()
        self.emit(events.CheckpointStarted(position.step))
        activity.now.begin("checkpoint", position.step)
        if self.policy.cadence is not None:
            self.policy.cadence.began()
        with self.watch.span("checkpoint") as span:
            gathered = self.adapter.gather_state(self.writer.comm, self.writer.copies)
            write_ledger = self.ledger.end_segment(position.step)
            compare = partial(self.checks.at_save, position.step, self.writer.copies)
            self.writer.begin(self.adapter.state, position, best, write_ledger, not gathered, compare)
        self._waited[position.step] = span.seconds
        if not self.policy.in_background:
            self.finish()

    def save_history(self, position: Position, best: Best | None) -> None:
        """The newest checkpoint has the state at `position`; give it that position's history of validations."""
        self.finish()
        self.emit(events.CheckpointStarted(position.step))
        activity.now.begin("checkpoint", position.step)
        with self.watch.span("checkpoint") as span:
            saved = self.writer.save_history(position, best)
        self.emit(events.CheckpointDurable(position.step, Path(saved.path), span.seconds, saved.write_seconds))

    def collect(self, ended: int) -> None:
        """Tell what became of the first `ended` checkpoints of this run, which all ranks know to have ended."""
        while self.writer.collected < ended:
            self._collect_one()

    def finish(self) -> None:
        """Wait for all that are under way."""
        while self.writer.under_way:
            self._collect_one()

    def require_last(self) -> None:
        """As `finish`, after training, when no further checkpoint makes up for one that failed. Raises HvdtrainError:
        on all ranks; the last one that was begun was not written."""
        self.finish()
        if self._last_failure is not None:
            raise failure_of(self._last_failure)

    def _collect_one(self) -> None:
        """Tell what became of the oldest one. Raises HvdtrainError: on all ranks; it was not written, and training must
        not go on, as always where weights differ."""
        activity.now.begin("checkpoint", activity.now.step)
        with self.watch.span("checkpoint") as span:
            saved = self.writer.collect()
        activity.now.took("checkpoint", saved.write_seconds)
        waited = self._waited.pop(saved.step) + span.seconds
        self._last_failure = saved if saved.failure is not None else None
        if saved.diverged:
            self.checks.refuse(saved.step)
        if saved.failure is None:
            self.checks.known_equal = max(self.checks.known_equal, saved.step)
            if self.policy.cadence is not None:
                self.policy.cadence.ended(waited, saved.write_seconds)
            size, seconds = saved.size, saved.write_seconds
            self.emit(events.CheckpointDurable(saved.step, Path(saved.path), waited, seconds, size))
        elif self.policy.goes_on:
            _log.warning("%s Training goes on without it.", saved.failure[0])
            self.emit(events.CheckpointFailed(saved.step, saved.failure[0]))
        else:
            raise failure_of(saved)
