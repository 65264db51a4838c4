"""`hvdtrain train`: parse, open, restore, train, report. Read it from top to bottom."""

import gc
import logging
import os
import time
from collections.abc import Sequence

from hvdtrain import activity
from hvdtrain.adapters.chosen_framework import device_kind
from hvdtrain.checkpoints.writer import await_all_writes
from hvdtrain.cli.failure import who
from hvdtrain.comm.horovod_connections import end_connections
from hvdtrain.comm.open import leave_world
from hvdtrain.config.parser import parse_train_config
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.engine.stop_vote import StopRequest
from hvdtrain.errors import PeerError
from hvdtrain.exit_watch import completed
from hvdtrain.failure_record import write_failure
from hvdtrain.run.dry_run import dry_run
from hvdtrain.run.job import load_task_class, open_job
from hvdtrain.run.run_folder import close_logs
from hvdtrain.run.training import TrainingEnd, train
from hvdtrain.stop_requests import StopSignals
from hvdtrain.task.task import Task
from hvdtrain.topology import detect_topology
from hvdtrain.units import seconds_of
from hvdtrain.world_channel import WORLD_VARIABLE, WorldChannel, claim_world_channel, is_change

_log = logging.getLogger("hvdtrain.run")

_NEXT = "Next: `hvdtrain --task MODULE:CLASS` trains your own task (README.md); `hvdtrain help` lists all commands."
"""Below the table of a run that was started without an option."""


def run(argv: Sequence[str]) -> int:
    """Train as `argv` says; returns the exit code."""
    begin = time.perf_counter()
    config = parse_train_config(argv)
    return completed(detect_topology(os.environ).rank, who, lambda: _train(config, begin))


def _train(config: TrainConfig, begin: float) -> int:
    channel = claim_world_channel()
    joins = channel is not None and os.environ.get(WORLD_VARIABLE) == "0"  # workers that train already
    if joins:
        load_task_class(config)
    topology = detect_topology(os.environ)
    ends_process = topology.is_distributed or joins
    with StopSignals(who(), topology.is_root, _leave_record, ends_process) as signals:
        # Signals are noted before the launcher may count on this worker: those that it joins would wait for it in vain.
        if channel is not None and joins and (code := _enter_world(channel, signals)) is not None:
            return code
        task_class = load_task_class(config)
        gc.freeze()  # what was imported lives as long as the process: later collections need not visit it
        asked = with_deadline(signals.asked, config, begin)
        # GPUs and NCCL are of one world, and so are stages and their process sets.
        is_fixed = device_kind(task_class.framework) == "GPU" or config.parallel.is_pipeline
        if channel is not None and not is_fixed:
            return train_in_worlds(channel, config, task_class, signals, asked, begin)
        if channel is not None:
            channel.tell_fixed()
        end = train_once(config, task_class, begin, asked)
    if end.code == 0 and config == TrainConfig() and detect_topology(os.environ).is_root:
        print(_NEXT, flush=True)
    return end.code


def train_once(config: TrainConfig, task_class: type[Task], begin: float, asked: StopRequest) -> TrainingEnd:
    """Train in the world that `os.environ` describes.

    Args:
        begin: `time.perf_counter()` when this process began its work, or a later world began.
        asked: whether this rank was asked to stop.

    Raises:
        PeerError: a worker is lost.
        SystemExit: as `open_job`.
    """
    topology = detect_topology(os.environ)
    if config.parallel.choose == "auto":
        from hvdtrain.plan.make import chosen, timed_parallel

        job = open_job(config, task_class, topology, timed_parallel(task_class.framework, topology.size), chosen)
    else:
        job = open_job(config, task_class, topology)
    with job as (setup, comm):
        if not config.dry_run:
            return train(setup, comm, begin, asked)
        dry_run(setup, comm)
    return TrainingEnd(code=0, folder=None, stopped_by="")


def train_in_worlds(
    channel: WorldChannel,
    config: TrainConfig,
    task_class: type[Task],
    signals: StopSignals,
    asked: StopRequest,
    begin: float,
) -> int:
    """Train until a world ends otherwise than by a change of workers; returns its exit code.

    What costs time at a start stays: the process, imports, the kernel's cache of data and checkpoint. All else, the
    model too, is made again from the newest checkpoint, by the same code as after a restart.
    """
    channel.when_over = end_connections
    while True:
        lost: PeerError | None = None
        try:
            end = train_once(config, task_class, begin, lambda: asked() or channel.change())
            if not (end.stopped_by and is_change(end.stopped_by)):
                return end.code
        except PeerError as error:
            _log.info("this world has ended: %s %s", error.fact, error.conflict)
            activity.now.reached = activity.now.step
            lost = PeerError(error.fact, error.conflict, error.hint)  # without its traceback, which holds the model
        close_logs()
        leave_world(task_class.framework)
        await_all_writes()  # the next world reads the newest checkpoint, and writes into the same folder
        gc.collect()  # the model of that world
        code = _enter_world(channel, signals)
        if code == 0 and lost is not None:
            raise lost  # nobody goes on, and this worker has not ended well
        if code is not None:
            return code
        begin = time.perf_counter()


def _enter_world(channel: WorldChannel, signals: StopSignals) -> int | None:
    """Wait for the next world, whose rank answers signals; None, or the exit code with which this worker is to end."""
    code = channel.next_world()
    signals.who, signals.answers = who(), detect_topology(os.environ).is_root
    return code


def with_deadline(asked: StopRequest, config: TrainConfig, begin: float) -> StopRequest:
    """`asked`, and `--max-time` since `begin` where it is set: the time of all worlds together."""
    if config.max_time is None:
        return asked
    deadline = begin + seconds_of(config.max_time, "--max-time")
    return lambda: asked() or (f"--max-time {config.max_time}" if time.perf_counter() >= deadline else None)


def _leave_record(cause: str, code: int) -> None:
    write_failure("signal", detect_topology(os.environ).rank, cause, code)
