"""`hvdtrain train`: parse, open, restore, train, report. Read it from top to bottom."""

import gc
import os
import time
from collections.abc import Sequence
from functools import partial

from hvdtrain.adapters.open import device_kind
from hvdtrain.cli.failure import who
from hvdtrain.comm.communicator import Communicator
from hvdtrain.config.parser import parse_train_config
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.engine.stop_vote import StopRequest
from hvdtrain.failure_record import write_failure
from hvdtrain.run.dry_run import dry_run
from hvdtrain.run.job import load_kind, run_job
from hvdtrain.run.prepare import RunSetup
from hvdtrain.run.training import train
from hvdtrain.run.worlds import first_world, run_in_worlds
from hvdtrain.stop_requests import StopSignals
from hvdtrain.task.task import Task
from hvdtrain.topology import detect_topology
from hvdtrain.world_channel import claim_world_channel

_NEXT = "Next: `hvdtrain --task MODULE:CLASS` trains your own task (README.md); `hvdtrain help` lists all commands."
"""Below the table of a run that was started without an option."""


def run(argv: Sequence[str]) -> int:
    """Train as `argv` says; returns the exit code."""
    begin = time.perf_counter()
    config = parse_train_config(argv)
    channel = claim_world_channel()
    if channel is not None and (code := first_world(channel, lambda: load_kind(config))) is not None:
        return code

    def leave_record(cause: str, code: int) -> None:
        write_failure("signal", detect_topology(os.environ).rank, cause, code)

    with StopSignals(who(), detect_topology(os.environ).is_root, at_second=leave_record) as signals:
        kind = load_kind(config)
        gc.freeze()  # what was imported lives as long as the process: later collections need not visit it
        # GPUs and NCCL are of one world, and so are stages and their process sets.
        is_fixed = device_kind(kind.framework) == "GPU" or config.parallel.is_pipeline
        if channel is not None and is_fixed:
            channel.tell_fixed()
        if channel is None or is_fixed:
            return _train_once(kind, config, begin, signals.asked)[0]
        return run_in_worlds(channel, config, kind.framework, signals, partial(_train_once, kind), begin)


def _train_once(kind: type[Task], config: TrainConfig, begin: float, asked: StopRequest) -> tuple[int, str]:
    """In one world; the exit code, and what asked to stop, if anything did."""
    stopped_by = ""

    def work(setup: RunSetup, comm: Communicator) -> int:
        nonlocal stopped_by
        if config.dry_run:
            dry_run(setup, comm)
            return 0
        end = train(setup, comm, begin, asked)
        stopped_by = end.stopped_by
        if end.code == 0 and comm.topology.is_root and config == TrainConfig():
            print(_NEXT, flush=True)
        return end.code

    return run_job(config, kind, detect_topology(os.environ), work), stopped_by
