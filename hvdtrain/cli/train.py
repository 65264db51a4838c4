"""`hvdtrain train`: parse, open, restore, train, report. Read it from top to bottom."""

import gc
import os
import time
from collections.abc import Sequence

from hvdtrain.adapters.chosen_framework import device_kind
from hvdtrain.cli.failure import who
from hvdtrain.config.parser import parse_train_config
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.engine.stop_vote import StopRequest
from hvdtrain.failure_record import write_failure
from hvdtrain.run.dry_run import dry_run
from hvdtrain.run.job import load_task_class, open_job
from hvdtrain.run.training import TrainingEnd, train
from hvdtrain.run.worlds import train_in_worlds
from hvdtrain.stop_requests import StopSignals
from hvdtrain.task.task import Task
from hvdtrain.topology import detect_topology
from hvdtrain.units import seconds_of
from hvdtrain.world_channel import WORLD_VARIABLE, claim_world_channel

_NEXT = "Next: `hvdtrain --task MODULE:CLASS` trains your own task (README.md); `hvdtrain help` lists all commands."
"""Below the table of a run that was started without an option."""


def run(argv: Sequence[str]) -> int:
    """Train as `argv` says; returns the exit code."""
    begin = time.perf_counter()
    config = parse_train_config(argv)
    channel = claim_world_channel()
    if channel is not None and os.environ.get(WORLD_VARIABLE) == "0":  # it joins workers that train already
        load_task_class(config)
        if (code := channel.next_world()) is not None:
            return code
    with StopSignals(who(), detect_topology(os.environ).is_root, at_second=_leave_record) as signals:
        task_class = load_task_class(config)
        gc.freeze()  # what was imported lives as long as the process: later collections need not visit it
        asked = with_deadline(signals.asked, config, begin)
        # GPUs and NCCL are of one world, and so are stages and their process sets.
        is_fixed = device_kind(task_class.framework) == "GPU" or config.parallel.is_pipeline
        if channel is not None and not is_fixed:
            return train_in_worlds(channel, config, task_class, signals, asked, begin, train_once)
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
        from hvdtrain.plan.choose import chosen, timed_parallel

        job = open_job(config, task_class, topology, timed_parallel(task_class.framework, topology.size), chosen)
    else:
        job = open_job(config, task_class, topology)
    with job as (setup, comm):
        if not config.dry_run:
            return train(setup, comm, begin, asked)
        dry_run(setup, comm)
    return TrainingEnd(code=0, folder=None, stopped_by="")


def with_deadline(asked: StopRequest, config: TrainConfig, begin: float) -> StopRequest:
    """`asked`, and `--max-time` since `begin` where it is set: the time of all worlds together."""
    if config.max_time is None:
        return asked
    deadline = begin + seconds_of(config.max_time, "--max-time")
    return lambda: asked() or (f"--max-time {config.max_time}" if time.perf_counter() >= deadline else None)


def _leave_record(cause: str, code: int) -> None:
    write_failure("signal", detect_topology(os.environ).rank, cause, code)
