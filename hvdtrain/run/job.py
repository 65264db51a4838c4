"""What all commands do whose processes are ranks of a job: connect, prepare the task, end together."""

import faulthandler
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from hvdtrain.adapters.chosen_framework import bind_device_and_threads
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.horovod_world import allow_timeline, fuse_gradients, sum_in_order
from hvdtrain.comm.open import open_communicator
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.errors import HvdtrainError
from hvdtrain.failure_record import write_failure
from hvdtrain.run.data_opening import DataOpening
from hvdtrain.run.prepare import RunSetup, prepare
from hvdtrain.task.task import Task
from hvdtrain.tasks.task_registry import load_task, usable
from hvdtrain.topology import Topology
from hvdtrain.world_channel import WORLD_VARIABLE

Work = Callable[[RunSetup, Communicator], int]
"""What is done once all ranks are ready; returns the exit code."""


def load_kind(config: TrainConfig, given: type[Task] | None = None) -> type[Task]:
    """The task's class, and with it its framework. Args: `given`: a class that `config.task` is only the name of.

    Raises:
        UsageError: no such task, or its framework is not installed.
    """
    faulthandler.enable(sys.__stderr__ or sys.stderr)  # notebooks' own sys.stderr is no file
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    with _task_must_not_exit(), _collections_paused():
        if given is not None:
            return usable(given, config.task, config.framework)
        return load_task(config.task, config.framework)


@contextmanager
def _collections_paused() -> Iterator[None]:
    """Without Python's garbage collections, which take a fifth of the time in which a framework is imported: they visit
    all objects again and again, and nothing of an import is garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def run_job(
    config: TrainConfig, kind: type[Task], topology: Topology, work: Work, parallel: ParallelOptions | None = None
) -> int:
    """Do `work` on this rank; returns the exit code.

    Args:
        parallel: for whose stages process sets are formed; None: those of `config`.

    Raises:
        HvdtrainError: this rank fails and the others may not know it; what all ranks raise together is told here.
    """
    bind_device_and_threads(kind.framework, topology)
    if config.deterministic:
        sum_in_order(os.environ)
    if config.gradient_sync == "horovod":
        fuse_gradients(os.environ)
    if config.trace is not None:
        allow_timeline(os.environ)
    choose = _chooser(config)
    if choose is not None:
        parallel = choose.timed_parallel(kind.framework, topology.size)
    stages = config.parallel if parallel is None else parallel
    opening = DataOpening(config, kind)
    # In an elastic job a later world ends the connections that were opened while Horovod started.
    early = opening.begin if choose is None and WORLD_VARIABLE not in os.environ else lambda: None
    comm = open_communicator(kind.framework, topology, config.stall_timeout, config.process_sets, stages, early)

    def prepared() -> RunSetup:
        if choose is not None:
            return prepare(choose.chosen(config, kind, comm), kind, comm)
        return prepare(config, kind, comm, opening)

    with _task_must_not_exit():
        code = _joint_end(lambda: work(prepared(), comm), comm, config)
    opening.settle()
    comm.close()
    return code


def _chooser(config: TrainConfig) -> ModuleType | None:
    """What chooses how the model is divided, imported only where that is asked for."""
    return import_module("hvdtrain.plan.choose") if config.parallel.choose == "auto" else None


def _joint_end(work: Callable[[], int], comm: Communicator, config: TrainConfig) -> int:
    """The exit code of success, or of a failure that all ranks share; any other leaves this rank at once."""
    try:
        return work()
    except HvdtrainError as error:
        if not error.joint or config.debug or not comm.topology.is_distributed:
            raise
        write_failure("error", comm.topology.rank, str(error), error.exit_code)
        if comm.topology.is_root:
            sys.stderr.write(f"hvdtrain: {error}\n")
            sys.stderr.flush()
        return error.exit_code


@contextmanager
def _task_must_not_exit() -> Iterator[None]:
    """Otherwise a rank could exit with code 0 while the others wait for it."""
    try:
        yield
    except SystemExit as error:
        raise RuntimeError(f"the task called sys.exit({error.code!r}) before training was done") from error
