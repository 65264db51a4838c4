"""The parts of a training: its engine with ledger and checkpoint writer, and the callbacks of its events."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass

from hvdtrain.adapters.adapter_protocol import PassChecks, TunableAdapter
from hvdtrain.adapters.chosen_framework import open_profiler
from hvdtrain.audit.ledger import CoverageLedger, NoLedger
from hvdtrain.checkpoints.format import infinite_from_the_start
from hvdtrain.checkpoints.writer import CheckpointWriter, await_all_writes
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.timeline import Timeline
from hvdtrain.config.checkpoint_options import seconds_between
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.config.validation_options import early_stopping_of
from hvdtrain.config.value_syntax import trace_steps, updates_between_checks
from hvdtrain.data.catalog_source import CatalogSource
from hvdtrain.engine import events
from hvdtrain.engine.callbacks_of_task import LeavesBuffers
from hvdtrain.engine.engine import Engine
from hvdtrain.engine.failure_notice import tell_failure
from hvdtrain.engine.limits import RunLimits, RunResult
from hvdtrain.engine.noted_passes import NotedPasses
from hvdtrain.engine.repeated_passes import RepeatedPasses
from hvdtrain.engine.saves import Cadence, SavePolicy
from hvdtrain.engine.source import Ledger
from hvdtrain.engine.state_sync import whole_state
from hvdtrain.engine.stop_vote import StopRequest
from hvdtrain.rank_summary import summarizes
from hvdtrain.run.prepare import RunSetup
from hvdtrain.run.run_folder import RunFolder
from hvdtrain.run.sinks.sink import SinkContext
from hvdtrain.run.sinks.sink_registry import open_sinks
from hvdtrain.topology.virtual_workers import VirtualWorkers
from hvdtrain.version import versions

_log = logging.getLogger("hvdtrain.run")


@dataclass(frozen=True)
class Assembly:
    """A training whose model and folder are there; makes the rest of its parts."""

    setup: RunSetup
    comm: Communicator
    adapter: TunableAdapter
    folder: RunFolder

    def build_engine(
        self,
        callbacks: Sequence[events.Callback],
        asked: StopRequest,
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
            limits=self._limits(),
            checkpoints=self._checkpoint_writer(),
            ledger=self._ledger(),
            callbacks=callbacks,
            asked=asked,
            early_stopping=early_stopping_of(config, setup.validation),
            on_result=on_result,
            save_policy=_save_policy(config),
            hosts=hosts,
            summarizes_ranks=summarizes(config.metrics_detail, self.comm.topology.size),
            noted_passes=self._noted_passes(hosts),
        )

    def _limits(self) -> RunLimits:
        setup, config = self.setup, self.setup.config
        return RunLimits(
            epochs=setup.epochs,
            max_steps=config.max_steps,
            log_interval=config.log_interval,
            checkpoint_interval=config.checkpoint_interval,
            max_masked=config.data.max_corrupt,
            steps_per_call=config.steps_per_call,
            check_weights_every=config.check_weights_every or 0,
            hash_every=config.hash_every or 0,
        )

    def _noted_passes(self, hosts: Sequence[str]) -> NotedPasses | None:
        checks, workers = self.adapter.pass_checks, self.setup.workers
        if checks is None or workers is None:
            return None
        repeated = self._repeated_passes(checks, workers, hosts)
        return NotedPasses(checks, self.comm, workers, self._limits(), repeated, self.setup.validation.values())

    def _repeated_passes(
        self, checks: PassChecks, workers: VirtualWorkers, hosts: Sequence[str]
    ) -> RepeatedPasses | None:
        setup, train = self.setup, self.setup.train
        if setup.config.check_workers is None:
            return None
        assert isinstance(train, CatalogSource)  # as the options' conflicts say
        every = updates_between_checks(setup.config.check_workers)
        alone = setup.may_change_workers
        states = self.adapter.worker_states
        assert states is not None  # as there are virtual workers
        return RepeatedPasses(checks, states, self.comm, train.of_worker, workers, every, hosts, alone, self._go_back)

    def _go_back(self, step: int) -> None:
        """Let training resume from before what a wrong worker may have spoilt since `step`, where that can be."""
        if not self.comm.topology.is_root:
            return
        await_all_writes()  # a save that is under way would make its checkpoint the latest one
        try:
            found = self.folder.checkpoints.go_back(step)
        except OSError as error:
            _log.warning("training cannot be made to resume from before step %d: %s", step, error)
            return
        if found is not None:
            _log.warning("training resumes from the checkpoint of step %d: later ones may be wrong", found)
        elif self.folder.checkpoints.paths():
            text = "no checkpoint is as old as the last sound check, of step %d: training resumes from the newest one, "
            _log.warning(text + "which may be wrong (--keep-checkpoints keeps more of them)", step)

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
        )

    @contextmanager
    def open_callbacks(
        self, totals: events.Callback, of_task: Sequence[events.Callback], step: int, begin: float
    ) -> Iterator[list[events.Callback]]:
        """`totals`, the sinks, the task's callbacks, and what records --trace; sinks are closed when the block ends.

        If a sink cannot be opened, those that are open and the task's callbacks receive RunFailed. `begin`:
        `time.perf_counter()` when this process began its work.
        """
        begun = time.time() - (time.perf_counter() - begin)
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
            states = self.adapter.worker_states
            watched = of_task if states is None else [LeavesBuffers(each, states) for each in of_task]
            yield [totals, *sinks, *watched, *self._tracers()]

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
