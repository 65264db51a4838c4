"""The block in which a training is watched: each rank writes heartbeats, and a stall is explained."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime

from hvdtrain import activity
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.horovod_connections import end_connections
from hvdtrain.comm.messages import broadcast_json
from hvdtrain.history.heartbeats import Heartbeat
from hvdtrain.run.prepare import RunSetup
from hvdtrain.run.run_folder import RunFolder
from hvdtrain.run.watch.heartbeat import HeartbeatWriter, interval_of
from hvdtrain.run.watch.stall_reports import StallReports
from hvdtrain.run.watch.watchdog import Limits, Watchdog
from hvdtrain.units import seconds_of


@contextmanager
def watched(setup: RunSetup, comm: Communicator, folder: RunFolder, step: int) -> Iterator[None]:
    """Run the block, after `step` updates, with a thread for heartbeats and one for --watchdog. Collective."""
    topology = comm.topology
    now = datetime.now().strftime("%Y%m%d-%H%M%S.%f")[:-3]  # survivors of a lost worker start again within a second
    start = broadcast_json(comm, now, "hvdtrain.watchdog.start")
    activity.now.begin("start", step)
    first = Heartbeat(
        rank=topology.rank,
        size=topology.size,
        start=start,
        host=socket.gethostname(),
        pid=os.getpid(),
        time=time.time(),
        framework=setup.task.framework,
        total_steps=setup.total_steps,
        epochs=setup.epochs,
    )
    heartbeats = HeartbeatWriter(folder.path, first, interval_of(topology.size))
    reports = StallReports(folder.stalls / start, topology.size)
    with heartbeats, _watchdog(setup, topology.rank, reports, step):
        yield


def _watchdog(setup: RunSetup, rank: int, reports: StallReports, step: int) -> AbstractContextManager[object]:
    config = setup.config
    if config.watchdog == "never":
        return nullcontext()
    seconds = None if config.watchdog == "auto" else seconds_of(config.watchdog, "--watchdog")
    leave = end_connections if setup.may_change_workers else None
    limits = Limits(seconds, most=config.stall_timeout)
    return Watchdog(rank, reports, limits, step, ends=config.watchdog_action == "end", leave=leave)
