"""What all commands do whose processes are ranks of a job: connect, prepare the task, end together."""

import faulthandler
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hvdtrain.adapters.chosen_framework import bind_device_and_threads
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.horovod_world import allow_timeline, fuse_gradients, sum_in_order
from hvdtrain.comm.open import open_communicator
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.data.printed_lines import printed_once
from hvdtrain.errors import HvdtrainError
from hvdtrain.failure_record import left_to_raise, write_failure
from hvdtrain.models.keras_import import prepare_keras
from hvdtrain.run.compute_threads import set_compute_threads
from hvdtrain.run.data_opening import DataOpening
from hvdtrain.run.prepare import RunSetup, prepare
from hvdtrain.task.task import Task
from hvdtrain.tasks.by_value import sent_task_class
from hvdtrain.tasks.task_registry import load_task, usable
from hvdtrain.topology import Topology
from hvdtrain.world_channel import WORLD_VARIABLE

Choose = Callable[[TrainConfig, type[Task], Communicator], TrainConfig]
"""What decides, once the ranks are connected, how the model is divided: `hvdtrain.plan.make.chosen`."""


def load_task_class(config: TrainConfig, task_class: type[Task] | None = None) -> type[Task]:
    """The task's class, and with it its framework. `task_class`, and one that `hvdtrain.train` has sent, is what
    `config.task` only names. Raises UsageError: there is no such task, or its framework is not installed."""
    faulthandler.enable(sys.__stderr__ or sys.stderr)  # a notebook's own sys.stderr is not a file
    prepare_keras()
    with _task_must_not_exit(), _collections_paused():
        task_class = task_class or sent_task_class()
        if task_class is not None:
            return usable(task_class, config.task, config.framework)
        return load_task(config.task, config.framework)


@contextmanager
def _collections_paused() -> Iterator[None]:
    """Pause garbage collection, which takes a fifth of a framework's import: nothing of an import is garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def open_job(
    config: TrainConfig,
    task_class: type[Task],
    topology: Topology,
    parallel: ParallelOptions | None = None,  # for whose stages process sets are formed; None: those of `config`
    choose: Choose | None = None,  # replaces `config` by one that says how the model is divided
) -> Iterator[tuple[RunSetup, Communicator]]:
    """Connect this rank with the others and prepare the task; at the end of the block all ranks end together.

    Raises:
        SystemExit: all ranks have the same error, which rank 0 has printed; its exit code.
        HvdtrainError: this rank fails, and the others may not know it: the process is to end at once.
    """
    opening = DataOpening(config, task_class)
    # In an elastic job a later world ends the connections that were opened while Horovod started.
    early = opening.begin if choose is None and WORLD_VARIABLE not in os.environ else lambda: None
    stages = config.parallel if parallel is None else parallel
    with joined_ranks(config, task_class.framework, topology, stages, early, opening.settle) as comm:
        yield prepare(choose(config, task_class, comm) if choose else config, task_class, comm, opening), comm


@contextmanager
def joined_ranks(
    config: TrainConfig,
    framework: str,
    topology: Topology,
    stages: ParallelOptions,
    meanwhile: Callable[[], object] = lambda: None,  # called while Horovod starts
    settle: Callable[[], object] = lambda: None,  # called before the connections are closed
) -> Iterator[Communicator]:
    """Connect this rank with the others; at the end of the block all ranks end together. Raises as `open_job`."""
    set_compute_threads(config, os.environ)
    bind_device_and_threads(framework, topology)
    if config.same_bits:
        sum_in_order(os.environ)
    if config.gradient_sync == "horovod":
        fuse_gradients(os.environ)
    if config.trace is not None:
        allow_timeline(os.environ)
    comm = open_communicator(
        framework, topology, config.stall_timeout, config.process_sets, stages, meanwhile=meanwhile
    )
    failure: HvdtrainError | None = None
    try:
        with _task_must_not_exit(), printed_once():
            yield comm
    except HvdtrainError as error:
        if not error.joint or config.debug or not comm.topology.is_distributed:
            raise
        failure = error.with_traceback(None)
        # Every rank leaves a record of a failure that all share; rank 0's message is enough.
        record = (failure.failure_kind, comm.topology.rank, str(failure), failure.exit_code)
        if not left_to_raise(*record, f"hvdtrain: {failure}"):
            write_failure(*record)
            if comm.topology.is_root:
                sys.stderr.write(f"hvdtrain: {failure}\n")
                sys.stderr.flush()
    settle()
    comm.close()
    if failure is not None:
        raise SystemExit(failure.exit_code)


@contextmanager
def _task_must_not_exit() -> Iterator[None]:
    """Refuse sys.exit() in the task: a rank could exit with code 0 while the others wait for it."""
    try:
        yield
    except SystemExit as error:
        raise RuntimeError(f"the task called sys.exit({error.code!r}) before training was done") from error
