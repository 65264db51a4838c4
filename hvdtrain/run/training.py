"""One training run, from its setup to its result."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from data_sharding import Catalog
from hvdtrain import activity
from hvdtrain.adapters.adapter_protocol import TunableAdapter
from hvdtrain.adapters.open import device_kind, open_profiler
from hvdtrain.audit.ledger import CoverageLedger, NoLedger, audit_of
from hvdtrain.checkpoints.format import Checkpoint, Position, infinite_from_the_start
from hvdtrain.checkpoints.resume import checkpoints_of
from hvdtrain.checkpoints.shared_folder import require_shared
from hvdtrain.checkpoints.writer import CheckpointWriter
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.horovod_connections import end_connections
from hvdtrain.comm.horovod_world import node_name
from hvdtrain.comm.messages import agree, broadcast_json, gather_json
from hvdtrain.comm.timeline import timeline_of
from hvdtrain.config.checkpoint_options import seconds_between
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.config.validation_options import early_stopping_of
from hvdtrain.config.value_syntax import trace_steps
from hvdtrain.config.yaml_file import dump_config
from hvdtrain.data.catalog_source import CatalogSource, require_little_lost, warn_of_damage
from hvdtrain.engine import events
from hvdtrain.engine.cadence import Cadence
from hvdtrain.engine.engine import Engine
from hvdtrain.engine.failure_notice import tell_failure
from hvdtrain.engine.limits import RunLimits, RunResult
from hvdtrain.engine.saves import SavePolicy
from hvdtrain.engine.source import Ledger
from hvdtrain.engine.state_sync import whole_state
from hvdtrain.engine.stop_vote import StopRequest
from hvdtrain.engine.validator import require_measured
from hvdtrain.errors import RESUMABLE
from hvdtrain.files import unwritable, write_atomically, write_json
from hvdtrain.run.ending import Ending
from hvdtrain.run.prepare import RunSetup
from hvdtrain.run.result import Totals, describe, environment
from hvdtrain.run.run_folder import RunFolder, choose_folder
from hvdtrain.run.sinks.sink import SinkContext
from hvdtrain.run.sinks.sink_registry import open_sinks
from hvdtrain.run.start import (
    named_checkpoint,
    open_own_adapter,
    own_checkpoint,
    restore_and_broadcast,
    with_common_resume,
)
from hvdtrain.run.tuning.choice import tune
from hvdtrain.run.watch.heartbeat import Facts, HeartbeatWriter, interval_of
from hvdtrain.run.watch.stall_reports import StallReports
from hvdtrain.run.watch.watchdog import Limits, Watchdog
from hvdtrain.task.task import callbacks_of
from hvdtrain.units import seconds_of
from hvdtrain.version import versions
from hvdtrain.world_channel import WORLD_VARIABLE, is_change

_log = logging.getLogger("hvdtrain.run")


class TrainingEnd(NamedTuple):
    """How a training ended.

    Attributes:
        code: exit code: 0, or RESUMABLE where a request stopped it early.
        folder: of the run.
        stopped_by: that request; else empty.
    """

    code: int
    folder: Path
    stopped_by: str


def train(setup: RunSetup, comm: Communicator, begin: float, asked: StopRequest) -> TrainingEnd:
    """Train, and leave result.json.

    Args:
        begin: `time.perf_counter()` when the process began its work, for the times in the result.
        asked: whether this rank was asked to stop.
    """
    setup = with_common_resume(setup, comm)
    require_little_lost(_catalogs(setup), setup.config.data.max_corrupt)
    named = agree(comm, lambda: named_checkpoint(setup, comm), "hvdtrain.resume.named")
    adapter = open_own_adapter(setup, comm)  # which may be refused, and then leaves no folder
    folder = _open_folder(setup, comm)
    try:
        stopped_by = _Training(setup, comm, adapter, folder).run(named, begin, asked)
        return TrainingEnd(RESUMABLE if stopped_by else 0, folder.path, stopped_by)
    finally:
        folder.release()  # a later run of this process may go on in it


def _open_folder(setup: RunSetup, comm: Communicator) -> RunFolder:
    """Rank 0 chooses and makes the folder, every rank opens its log in it."""
    is_root, framework = comm.topology.is_root, setup.task.framework
    chosen = agree(comm, lambda: str(choose_folder(setup.config, framework)) if is_root else None, "hvdtrain.folder")
    path = broadcast_json(comm, chosen, "hvdtrain.folder.path")
    folder = RunFolder(Path(path), setup.config.keep_checkpoints)
    agree(comm, lambda: folder.claim() if is_root else None, "hvdtrain.folder.claim")
    agree(comm, lambda: folder.open_log(comm.topology.rank, setup.config.log_level), "hvdtrain.folder.logs")
    return folder


@dataclass(frozen=True)
class _Training:
    """A training whose model and folder are there."""

    setup: RunSetup
    comm: Communicator
    adapter: TunableAdapter
    folder: RunFolder

    def run(self, named: Checkpoint | None, begin: float, asked: StopRequest) -> str:
        """Returns what has asked to stop, where that left something undone; else ""."""
        setup, comm, folder = self.setup, self.comm, self.folder
        checkpoint = agree(comm, lambda: own_checkpoint(setup, folder, comm) or named, "hvdtrain.resume")
        lines = describe(setup, comm, self.adapter.parameter_count(), folder.path)
        if comm.topology.is_root:
            print("\n".join(lines), flush=True)
            warn_of_damage(_catalogs(setup))
            if setup.config.precision == "fp16" and device_kind(setup.task.framework) == "CPU":
                print("hvdtrain: fp16 is many times slower than fp32 on CPUs; bf16 is made for them", flush=True)
        for line in lines:
            _log.info("%s", line)
        position = restore_and_broadcast(setup, self.adapter, checkpoint, comm)
        if setup.validation is not None and setup.config.best_metric is not None:
            require_measured(self.adapter, comm, setup.validation, setup.config.best_metric)
        written = {} if checkpoint is None else checkpoint.about
        about = {**setup.about, "tuned": tune(setup, self.adapter, comm, position.step, written)}
        return replace(self, setup=replace(setup, about=about))._train(position, begin, asked)

    def _train(self, position: Position, begin: float, asked: StopRequest) -> str:
        setup, comm, folder = self.setup, self.comm, self.folder
        hosts = gather_json(comm, node_name(), "hvdtrain.start.hosts")
        agree(
            comm, lambda: self._write_down(position, hosts) if comm.topology.is_root else None, "hvdtrain.folder.config"
        )
        if setup.config.checkpoint_writers > 1:
            require_shared(folder.checkpoints.folder, comm)
        totals = Totals(comm.topology.size)
        if comm.topology.is_root:
            totals.resume_from(folder.metrics, position.step)
        own_callbacks = agree(comm, lambda: callbacks_of(setup.task), "hvdtrain.start.callbacks")
        start_seconds = time.perf_counter() - begin
        ending = Ending(setup, self.adapter, folder, totals, begin, start_seconds, comm.topology.launcher)
        with ExitStack() as stack:
            stack.enter_context(self._watched(position.step))
            begun = time.time() - (time.perf_counter() - begin)
            callbacks = self._open_callbacks(stack, totals, own_callbacks, position.step, begun)
            on_result = ending.write if comm.topology.is_root else None
            engine = self._engine(callbacks, asked_or_late(asked, setup.config, begin), on_result, hosts)
            own = setup.config.resume == "auto" and position.step > 0  # the checkpoint is this folder's
            outcome = engine.run(position, own)
        if comm.topology.is_root and not is_change(outcome.stopped_by):  # else this run goes on in a moment
            ending.print(outcome)
        return outcome.stopped_by

    def _open_callbacks(
        self, stack: ExitStack, totals: Totals, own: Sequence[events.Callback], step: int, begun: float
    ) -> list[events.Callback]:
        """The sinks between `totals` and the task's `own` callbacks. If one cannot be opened, the others are told."""
        sinks: list[events.Callback] = []
        try:
            given = self.adapter.state, self.setup.train
            context = SinkContext(self.setup.config, self.folder, self.comm.topology, begun, *given)
            for sink in open_sinks(context, stack):
                sinks.append(sink)
        except BaseException as error:
            tell_failure([*sinks, *own], events.RunFailed(step, error))
            raise
        return [totals, *sinks, *own, *self._tracers()]

    def _tracers(self) -> list[events.Callback]:
        """What records --trace. After the others, so that a step's trace contains them."""
        if self.setup.config.trace is None:
            return []
        from hvdtrain.run.tracing.tracer import Tracer

        framework, timeline = self.setup.task.framework, timeline_of(self.comm)
        steps = trace_steps(self.setup.config.trace)
        return [Tracer(self.comm, self.adapter, steps, self.folder.traces, lambda: open_profiler(framework), timeline)]

    @contextmanager
    def _watched(self, step: int) -> Iterator[None]:
        """The block in which each rank tells what it does, and a training that does not go on is explained."""
        now = datetime.now().strftime("%Y%m%d-%H%M%S.%f")[:-3]  # survivors of a lost worker start again within a second
        start = broadcast_json(self.comm, now, "hvdtrain.watchdog.start")
        activity.now.begin("start", step)
        with self._heartbeats(start), self._watchdog(start, step):
            yield

    def _heartbeats(self, start: str) -> HeartbeatWriter:
        setup, config, topology = self.setup, self.setup.config, self.comm.topology
        steps = setup.epochs * setup.train.plan(0).steps
        total = steps if config.max_steps is None else min(steps, config.max_steps)
        facts = Facts(topology.rank, topology.size, start, setup.task.framework, total, setup.epochs)
        return HeartbeatWriter(self.folder.path, facts, interval_of(topology.size))

    def _watchdog(self, start: str, step: int) -> AbstractContextManager[object]:
        config, topology = self.setup.config, self.comm.topology
        if config.watchdog == "never":
            return nullcontext()
        seconds = None if config.watchdog == "auto" else seconds_of(config.watchdog, "--watchdog")
        reports = StallReports(self.folder.stalls / start, topology.size)
        limits = Limits(seconds, config.stall_timeout)
        leave = end_connections if self._may_change_workers() else None
        return Watchdog(topology.rank, reports, limits, step, config.watchdog_action == "end", leave)

    def _write_down(self, position: Position, hosts: Sequence[str]) -> None:
        config, folder = self.setup.config, self.folder
        try:
            write_atomically(folder.config, dump_config(config).encode())
            write_json(folder.env, {**environment(self.comm.topology), "hosts": hosts})
            folder.checkpoints.resume_from(position, checkpoints_of(config.resume))
        except OSError as error:
            raise unwritable(folder.path, error) from error

    def _engine(
        self,
        callbacks: list[events.Callback],
        asked: StopRequest,
        on_result: Callable[[RunResult], None] | None,
        hosts: Sequence[str],
    ) -> Engine:
        setup, config, comm = self.setup, self.setup.config, self.comm
        about = {**setup.about, "found": dict(setup.task.found), "config": asdict(config), "versions": versions()}
        writes = comm.topology.is_root or config.checkpoint_writers > 1
        state = whole_state(comm, self.adapter, writes)
        infinite = infinite_from_the_start(state) if writes else frozenset()
        del state
        return Engine(
            adapter=self.adapter,
            comm=comm,
            train=setup.train,
            validation=setup.validation,
            schedule=setup.schedule,
            limits=RunLimits(
                *(setup.epochs, config.max_steps, config.log_interval, config.checkpoint_interval),
                *(config.data.max_corrupt, config.steps_per_call, config.check_weights_every or 0),
            ),
            checkpoints=CheckpointWriter(
                comm, self.folder.checkpoints, about, infinite, config.checkpoint_writers, self._may_change_workers()
            ),
            ledger=self._ledger(),
            callbacks=callbacks,
            asked=asked,
            early_stopping=early_stopping_of(config),
            on_result=on_result,
            save_policy=_save_policy(config),
            hosts=hosts,
        )

    def _may_change_workers(self) -> bool:
        """Whether this process may train on with others after a loss. On GPUs all start again."""
        return WORLD_VARIABLE in os.environ and device_kind(self.setup.task.framework) == "CPU"

    def _ledger(self) -> Ledger:
        setup, folder = self.setup, self.folder
        if not isinstance(setup.train, CatalogSource):
            return NoLedger(self.comm, folder.audit)
        quarantine = folder.quarantine if setup.config.data.on_corrupt == "quarantine" else None
        steps, origin = setup.train.plan(0).steps, audit_of(setup.config.resume)
        return CoverageLedger(self.comm, folder.audit, setup.train, steps, quarantine, origin)


def _save_policy(config: TrainConfig) -> SavePolicy:
    times = seconds_between(config)
    return SavePolicy(
        in_background=config.checkpoint_mode == "async",
        skips=config.checkpoint_overlap == "skip",
        goes_on=config.checkpoint_failure == "warn",
        cadence=None if times is None else Cadence(*times),
    )


def _catalogs(setup: RunSetup) -> list[Catalog]:
    return [source.catalog for source in (setup.train, setup.validation) if isinstance(source, CatalogSource)]


def asked_or_late(asked: StopRequest, config: TrainConfig, begin: float) -> StopRequest:
    """`asked`, and `--max-time` since `begin` (of `time.perf_counter`), where it is set."""
    if config.max_time is None:
        return asked
    deadline = begin + seconds_of(config.max_time, "--max-time")
    return lambda: asked() or (f"--max-time {config.max_time}" if time.perf_counter() >= deadline else None)
