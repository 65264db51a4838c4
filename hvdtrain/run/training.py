"""One training run, from its setup to its result."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from hvdtrain.adapters.adapter_protocol import TunableAdapter
from hvdtrain.adapters.chosen_framework import device_kind, open_profiler
from hvdtrain.audit.ledger import CoverageLedger, NoLedger, audit_of
from hvdtrain.checkpoints.format import Position, infinite_from_the_start
from hvdtrain.checkpoints.parts import require_shared
from hvdtrain.checkpoints.resume import checkpoints_of
from hvdtrain.checkpoints.writer import CheckpointWriter
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.horovod_world import node_name
from hvdtrain.comm.messages import agree, gather_json
from hvdtrain.comm.timeline import Timeline
from hvdtrain.config.checkpoint_options import seconds_between
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.config.validation_options import early_stopping_of
from hvdtrain.config.value_syntax import trace_steps
from hvdtrain.config.yaml_file import dump_config
from hvdtrain.data.catalog_source import CatalogSource, require_little_lost, warn_of_damage
from hvdtrain.engine import events
from hvdtrain.engine.engine import Engine
from hvdtrain.engine.failure_notice import tell_failure
from hvdtrain.engine.limits import RunLimits, RunResult
from hvdtrain.engine.saves import Cadence, SavePolicy
from hvdtrain.engine.source import Ledger
from hvdtrain.engine.state_sync import whole_state
from hvdtrain.engine.stop_vote import StopRequest
from hvdtrain.engine.validator import require_measured
from hvdtrain.errors import RESUMABLE
from hvdtrain.files import unwritable, write_atomically, write_json
from hvdtrain.run.ending import Ending
from hvdtrain.run.prepare import RunSetup
from hvdtrain.run.result import Totals, describe, environment
from hvdtrain.run.run_folder import RunFolder, open_folder
from hvdtrain.run.sinks.sink import SinkContext
from hvdtrain.run.sinks.sink_registry import open_sinks
from hvdtrain.run.start import (
    named_checkpoint,
    newest_checkpoint,
    open_own_adapter,
    restore_and_broadcast,
    with_common_resume,
)
from hvdtrain.run.tuning.choice import tune
from hvdtrain.run.watch.watchdog import watched
from hvdtrain.task.task import callbacks_of
from hvdtrain.version import versions
from hvdtrain.world_channel import is_change

_log = logging.getLogger("hvdtrain.run")


class TrainingEnd(NamedTuple):
    code: int  # exit code: 0, or RESUMABLE where a request stopped it early
    folder: Path | None  # of the run; None where nothing was trained
    stopped_by: str  # that request; else empty


def train(setup: RunSetup, comm: Communicator, begin: float, asked: StopRequest) -> TrainingEnd:
    """Train, and leave result.json.

    Args:
        begin: `time.perf_counter()` when the process began its work, for the times in the result.
        asked: whether this rank was asked to stop.
    """
    setup = with_common_resume(setup, comm)
    require_little_lost(setup.catalogs, setup.config.data.max_corrupt)
    named = agree(comm, lambda: named_checkpoint(setup, comm), "hvdtrain.resume.named")
    adapter = open_own_adapter(setup, comm)  # which may be refused, and then leaves no folder
    folder = open_folder(setup.config, setup.task.framework, comm)
    try:
        checkpoint = agree(comm, lambda: newest_checkpoint(setup, folder, comm), "hvdtrain.resume") or named
        _introduce(setup, comm, adapter, folder)
        position = restore_and_broadcast(setup, adapter, checkpoint, comm)
        if setup.validation is not None and setup.config.best_metric is not None:
            require_measured(adapter, comm, setup.validation, setup.config.best_metric)
        about_checkpoint = {} if checkpoint is None else checkpoint.about
        del checkpoint, named  # rank 0 needs their arrays no more
        tuned = tune(setup, adapter, comm, position.step, about_checkpoint)
        setup = replace(setup, about={**setup.about, "tuned": tuned})
        stopped_by = _Training(setup, comm, adapter, folder, begin, asked).run_from(position)
        return TrainingEnd(RESUMABLE if stopped_by else 0, folder.path, stopped_by)
    finally:
        folder.release()  # a later run of this process may go on in it


def _introduce(setup: RunSetup, comm: Communicator, adapter: TunableAdapter, folder: RunFolder) -> None:
    """Say what is trained, and what of it may not be as the user expects."""
    lines = describe(setup, comm, adapter.parameter_count(), folder.path)
    if comm.topology.is_root:
        print("\n".join(lines), flush=True)
        warn_of_damage(setup.catalogs)
        if setup.config.precision == "fp16" and device_kind(setup.task.framework) == "CPU":
            print("hvdtrain: fp16 is many times slower than fp32 on CPUs; bf16 is made for them", flush=True)
    for line in lines:
        _log.info("%s", line)


@dataclass(frozen=True)
class _Training:
    """A training whose model and folder are there; makes the rest of its parts, and lets them work."""

    setup: RunSetup
    comm: Communicator
    adapter: TunableAdapter
    folder: RunFolder
    begin: float  # as of `train`
    asked: StopRequest

    def run_from(self, position: Position) -> str:
        """Train from where the adapter is; returns what has asked to stop, where that left something undone."""
        setup, comm, folder, is_root = self.setup, self.comm, self.folder, self.comm.topology.is_root
        hosts = gather_json(comm, node_name(), "hvdtrain.start.hosts")
        agree(comm, lambda: self._write_facts(position, hosts) if is_root else None, "hvdtrain.folder.config")
        if setup.config.checkpoint_writers > 1:
            require_shared(folder.checkpoints.folder, comm)
        totals = Totals(comm.topology.size)
        if is_root:
            totals.resume_from(folder.metrics, position.step)
        of_task = agree(comm, lambda: callbacks_of(setup.task), "hvdtrain.start.callbacks")
        started = time.perf_counter() - self.begin
        ending = Ending(setup, self.adapter, folder, totals, self.begin, started, comm.topology.launcher)
        with (
            watched(setup, comm, folder, position.step),
            self._open_callbacks(totals, of_task, position.step) as callbacks,
        ):
            engine = self._build_engine(callbacks, ending.write if is_root else None, hosts)
            saved = setup.config.resume == "auto" and position.step > 0  # the checkpoint is this folder's
            outcome = engine.run(position, saved)
        if is_root and not is_change(outcome.stopped_by):  # else this run goes on in a moment
            ending.print(outcome)
        return outcome.stopped_by

    def _write_facts(self, position: Position, hosts: Sequence[str]) -> None:
        """config.yaml, env.json, and to which checkpoints the pointers lead."""
        config, folder = self.setup.config, self.folder
        try:
            write_atomically(folder.config, dump_config(config).encode())
            write_json(folder.env, {**environment(self.comm.topology), "hosts": hosts})
            folder.checkpoints.resume_from(position, checkpoints_of(config.resume))
        except OSError as error:
            raise unwritable(folder.path, error) from error

    def _build_engine(
        self,
        callbacks: Sequence[events.Callback],
        on_result: Callable[[RunResult], None] | None,
        hosts: Sequence[str],
    ) -> Engine:
        """The loop, with its limits as the options say. Collective; arguments as those of `Engine`."""
        setup, config = self.setup, self.setup.config
        return Engine(
            adapter=self.adapter,
            comm=self.comm,
            train=setup.train,
            validation=setup.validation,
            schedule=setup.schedule,
            limits=RunLimits(
                epochs=setup.epochs,
                max_steps=config.max_steps,
                log_interval=config.log_interval,
                checkpoint_interval=config.checkpoint_interval,
                max_masked=config.data.max_corrupt,
                steps_per_call=config.steps_per_call,
                check_weights_every=config.check_weights_every or 0,
            ),
            checkpoints=self._checkpoint_writer(),
            ledger=self._ledger(),
            callbacks=callbacks,
            asked=self.asked,
            early_stopping=early_stopping_of(config),
            on_result=on_result,
            save_policy=_save_policy(config),
            hosts=hosts,
        )

    def _checkpoint_writer(self) -> CheckpointWriter:
        setup, config = self.setup, self.setup.config
        writes = self.comm.topology.is_root or config.checkpoint_writers > 1
        state = whole_state(self.comm, self.adapter, writes)
        return CheckpointWriter(
            self.comm,
            self.folder.checkpoints,
            about={**setup.about, "found": dict(setup.task.found), "config": asdict(config), "versions": versions()},
            infinite=infinite_from_the_start(state) if writes else frozenset(),
            writers=config.checkpoint_writers,
            keeps=setup.may_change_workers,
        )

    def _ledger(self) -> Ledger:
        train, config, folder = self.setup.train, self.setup.config, self.folder
        if not isinstance(train, CatalogSource):
            return NoLedger(self.comm, folder.audit)
        return CoverageLedger(
            self.comm,
            folder.audit,
            train.catalog,
            train.raw,
            steps_per_epoch=train.plan(0).steps,
            quarantine=folder.quarantine if config.data.on_corrupt == "quarantine" else None,
            origin=audit_of(config.resume),
        )

    @contextmanager
    def _open_callbacks(
        self, totals: events.Callback, of_task: Sequence[events.Callback], step: int
    ) -> Iterator[list[events.Callback]]:
        """`totals`, the sinks, the task's callbacks, and what records --trace; sinks are closed when the block ends.

        If a sink cannot be opened, those that are open and the task's callbacks receive RunFailed after `step`.
        """
        begun = time.time() - (time.perf_counter() - self.begin)
        context = SinkContext(
            self.setup.config, self.folder, self.comm.topology, begun, self.adapter.state, self.setup.train
        )
        sinks: list[events.Callback] = []
        with ExitStack() as stack:
            try:
                for sink in open_sinks(context, stack):
                    sinks.append(sink)
            except BaseException as error:
                tell_failure([*sinks, *of_task], events.RunFailed(step, error))
                raise
            # The tracer comes last, so that a step's trace contains the other callbacks.
            yield [totals, *sinks, *of_task, *self._tracers()]

    def _tracers(self) -> list[events.Callback]:
        if self.setup.config.trace is None:
            return []
        from hvdtrain.run.tracing.tracer import Tracer

        framework, steps = self.setup.task.framework, trace_steps(self.setup.config.trace)
        tracer = Tracer(
            self.comm, self.adapter, steps, self.folder.traces, lambda: open_profiler(framework), Timeline(self.comm)
        )
        return [tracer]


def _save_policy(config: TrainConfig) -> SavePolicy:
    times = seconds_between(config)
    return SavePolicy(
        in_background=config.checkpoint_mode == "async",
        skips=config.checkpoint_overlap == "skip",
        goes_on=config.checkpoint_failure == "warn",
        cadence=None if times is None else Cadence(*times),
    )
