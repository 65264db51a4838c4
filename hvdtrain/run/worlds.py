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
from pathlib import Path

from hvdtrain import activity
from hvdtrain.checkpoints.writer import await_all_writes
from hvdtrain.comm.horovod_connections import end_connections
from hvdtrain.comm.open import leave_world
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.engine.stop_vote import StopRequest
from hvdtrain.errors import PeerError
from hvdtrain.run.run_folder import close_logs
from hvdtrain.run.training import TrainingEnd
from hvdtrain.stop_requests import StopSignals
from hvdtrain.task.task import Task
from hvdtrain.topology import detect_topology
from hvdtrain.world_channel import WORLD_VARIABLE, WorldChannel, continues_itself, is_change

_log = logging.getLogger("hvdtrain.run")

_FIRST = "1"

TrainOnce = Callable[[TrainConfig, type[Task], float, StopRequest], TrainingEnd]
"""As `hvdtrain.cli.train.train_once`."""


def train_in_worlds(
    channel: WorldChannel,
    config: TrainConfig,
    task_class: type[Task],
    signals: StopSignals,
    asked: StopRequest,
    begin: float,
    train_once: TrainOnce,
) -> int:
    """Train until a world ends otherwise than by a change of workers; returns its exit code."""
    channel.when_over = end_connections
    while True:
        lost: PeerError | None = None
        now = config if os.environ[WORLD_VARIABLE] == _FIRST else _continuing(config)
        try:
            end = train_once(now, task_class, begin, lambda: asked() or channel.change())
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
        code = channel.next_world()
        if code == 0 and lost is not None:
            raise lost  # nobody goes on, and this worker has not ended well
        if code is not None:
            return code
        begin = time.perf_counter()
        signals.answers = detect_topology(os.environ).is_root


def _continuing(config: TrainConfig) -> TrainConfig:
    """What continues the run of an earlier world."""
    latest = Path(config.output_dir or ".") / "checkpoints" / "latest"
    return replace(config, resume="auto") if continues_itself(config.resume, latest.exists) else config
