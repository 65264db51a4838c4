"""Training through several worlds in one process: with other workers after a loss, or when some join or leave.

What costs time at a start stays: the process, imports, the kernel's cache of data and checkpoint. All else, the model
too, is made again from the newest checkpoint, by the same code as after a restart. So what holds for a restart holds
here.
"""

import gc
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from hvdtrain import activity
from hvdtrain.checkpoints.writer import await_all_writes
from hvdtrain.comm.horovod_connections import end_connections
from hvdtrain.comm.open import leave_world
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.engine.stop_vote import StopRequest
from hvdtrain.errors import PeerError
from hvdtrain.run.run_folder import close_logs
from hvdtrain.run.training import asked_or_late
from hvdtrain.stop_requests import StopSignals
from hvdtrain.topology import detect_topology
from hvdtrain.world_channel import WORLD_VARIABLE, WorldChannel, continues_itself, is_change

_log = logging.getLogger("hvdtrain.run")

OneWorld = Callable[[TrainConfig, float, StopRequest], tuple[int, str]]
"""Trains in the world that `os.environ` describes, given `time.perf_counter()` when that began, and requests to stop;
returns the exit code and what has asked to stop, if anything did. Raises PeerError where a worker is lost."""

_FIRST = "1"


def first_world(channel: WorldChannel, prepare: Callable[[], object]) -> int | None:
    """For a worker that joins others: `prepare`, while they train, then wait for them. Returns as `next_world`."""
    if os.environ.get(WORLD_VARIABLE) != "0":
        return None
    prepare()
    return channel.next_world()


def run_in_worlds(
    channel: WorldChannel,
    config: TrainConfig,
    framework: str,
    signals: StopSignals,
    one_world: OneWorld,
    begin: float,
) -> int:
    """Train until a world ends otherwise than by a change of workers; returns its exit code."""

    asked_from_without = asked_or_late(signals.asked, config, begin)  # --max-time is that of all worlds together

    def asked() -> str | None:
        return asked_from_without() or channel.change()

    channel.when_over = end_connections
    while True:
        now = config if os.environ[WORLD_VARIABLE] == _FIRST else _continuing(config)
        end = _in_one_world(partial(one_world, now, begin, asked))
        if isinstance(end, int):
            return end
        close_logs()
        leave_world(framework)
        await_all_writes()  # the next world reads the newest checkpoint, and writes into the same folder
        gc.collect()  # the model of that world
        code = channel.next_world()
        if code == 0 and end is not None:
            raise end  # nobody goes on, and this worker has not ended well
        if code is not None:
            return code
        begin = time.perf_counter()
        signals.answers = detect_topology(os.environ).is_root


def _continuing(config: TrainConfig) -> TrainConfig:
    """What continues the run of an earlier world."""
    latest = Path(config.output_dir or ".") / "checkpoints" / "latest"
    return replace(config, resume="auto") if continues_itself(config.resume, latest.exists) else config


def _in_one_world(one_world: Callable[[], tuple[int, str]]) -> int | PeerError | None:
    """The exit code; or where another world is to follow, the error that ended this one, or None without one."""
    try:
        code, stopped_by = one_world()
    except PeerError as error:
        _log.info("this world has ended: %s %s", error.fact, error.conflict)
        activity.now.reached = activity.now.step
        return PeerError(error.fact, error.conflict, error.hint)  # without its traceback, which holds the model
    return None if stopped_by and is_change(stopped_by) else code
