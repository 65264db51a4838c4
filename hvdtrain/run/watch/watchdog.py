"""A thread on each rank that notices when training does not go on, and then says why.

Each rank writes what it does, and waits a moment for the reports of the others. The lowest rank that reports prints one
explanation of them all. So a rank that is frozen, rank 0 too, is named by the others.
"""

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from hvdtrain import activity
from hvdtrain.activity import Activity
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.horovod_connections import end_connections
from hvdtrain.comm.horovod_world import node_name
from hvdtrain.comm.messages import broadcast_json
from hvdtrain.errors import HvdtrainError
from hvdtrain.failure_record import STALL, write_failure
from hvdtrain.history.heartbeats import Heartbeat
from hvdtrain.log_flush import close_logs_before_exit, holding_logs
from hvdtrain.rank_summary import summarizes
from hvdtrain.run.prepare import RunSetup
from hvdtrain.run.run_folder import RunFolder
from hvdtrain.run.watch.heartbeat import HeartbeatWriter, interval_of
from hvdtrain.run.watch.host_heartbeats import HostHeartbeats
from hvdtrain.run.watch.host_stalls import HostStalls
from hvdtrain.run.watch.local_folder import LocalFolder
from hvdtrain.run.watch.stall_reports import Report, StallReports
from hvdtrain.units import seconds_of

LEAST_SECONDS: Final = 30.0
"""Without a word, where the user has not said how long: storage and networks have moments like that."""

_TIMES: Final = 20.0  # the slowest phase of the same kind so far
_LOOKS: Final = 10  # within the limit
_GRACE: Final = 0.25  # of the limit, to wait for reports of the others
_LEAST_GRACE: Final = 3.0
_LOOK_SECONDS: Final = 0.5  # between two looks at a stall
_CPU_SECONDS: Final = 0.2  # for so long is measured whether a rank computes

Reports = StallReports | HostStalls

_log = logging.getLogger("hvdtrain.run")


@dataclass(frozen=True)
class Limits:
    """How long a rank may do the same before it is explained."""

    seconds: float | None  # always; None: 20 times what the same has taken at most, but 30 s at least
    most: float  # where `seconds` is None: at most, and where the same was not done before, which may compile

    def after(self, slowest: float | None) -> float:
        """`slowest`: seconds that it took at most before; None: it was not done before."""
        if self.seconds is not None:
            return self.seconds
        return self.most if slowest is None else min(self.most, max(LEAST_SECONDS, _TIMES * slowest))


@dataclass(eq=False)
class Watchdog:
    """Watches while its block runs."""

    rank: int
    reports: Reports
    limits: Limits
    step: int  # updates that were done before
    # end this process after the explanation, unless some rank computes, or saves, which has a limit of its own
    ends: bool = False
    # ends its collectives instead of the process, which then trains on without the ranks that do not
    leave: Callable[[], object] | None = None
    now: Activity = activity.now

    def __post_init__(self) -> None:
        self._measures = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hvdtrain-watchdog", daemon=True)

    def __enter__(self) -> Self:
        self.now.begin("start", self.step)
        self.now.longest.clear()  # of an earlier training in this process
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()

    def _limit(self) -> float:
        """Of what is done now: a validation may be slow, and a step that takes as long as that one hangs."""
        if not self._measures and self.now.step > self.step:
            self._measures = True
            self.now.longest.clear()
        return self.limits.after(self.now.longest.get(self.now.phase) if self._measures else None)

    def _watch(self) -> None:
        looked_at = time.monotonic()
        while not self._stopping.wait(pause := self._limit() / _LOOKS):
            before, looked_at = looked_at, time.monotonic()
            since, limit = self.now.changed_at, self._limit()
            if looked_at - before > pause + limit / 2:
                continue  # this process itself was frozen: its main thread, too, has only just woken up
            if looked_at - since > limit and self.now.phase != "end":  # what callbacks do then keeps no rank waiting
                self._explain_or_log(since)
                while self.now.changed_at == since and not self._stopping.wait(_LOOK_SECONDS):
                    pass
                self.reports.withdraw(self.rank)
                looked_at = time.monotonic()
                if not self._stopping.is_set():
                    _log.warning("training goes on after %.0f s", looked_at - since)

    def _explain_or_log(self, since: float) -> None:
        try:
            self._explain(since)
        except Exception:  # a defect here must end neither the training nor the watch
            _log.exception("what this rank does could not be explained")

    def _explain(self, since: float) -> None:
        waited = time.monotonic() - since
        patience = max(_LEAST_GRACE, _GRACE * waited)
        try:
            told = self.reports.told()
            self.reports.write(self._report(waited))
            finding = self.reports.find(self.rank, patience, self._stopping.wait)
        except OSError as error:
            _log.warning("what this rank does could not be written down for the others: %s", error)
            return
        seconds, ends = time.monotonic() - since, self.ends and not finding.is_busy
        if not self._stands_still(since):
            return
        if finding.is_ours or (ends and not self._is_told(told, since, patience)):
            self._tell(finding.explanation, seconds)
        if ends and self._stands_still(since):
            self._end(finding.explanation, seconds)

    def _stands_still(self, since: float) -> bool:
        return self.now.changed_at == since and not self._stopping.is_set()

    def _is_told(self, before: int, since: float, patience: float) -> bool:
        """Wait until another rank has told it: as soon as this one ends, that one's collectives end, too, and it would
        tell nothing. False where it tells nothing in this time, as it is frozen."""
        end = time.monotonic() + patience
        while self._stands_still(since) and self.reports.told() <= before:
            if time.monotonic() >= end:
                return False
            self._stopping.wait(_LOOK_SECONDS)
        return True

    def _report(self, seconds: float) -> Report:
        now = self.now
        waits_in = now.waits_in()
        before = time.process_time()  # of all threads: TensorFlow's step computes in others than the main one
        time.sleep(_CPU_SECONDS)
        return Report(
            rank=self.rank,
            host=socket.gethostname(),
            phase=now.phase,
            step=now.step,
            seconds=seconds,
            waits_in=waits_in,
            reads=now.reads() if now.is_reading() else "",
            computes=time.process_time() - before > _CPU_SECONDS / 4,
            last_collective=now.collective,
            works=now.does_own_work(),
        )

    def _tell(self, explanation: str, seconds: float) -> None:
        stacks = self.reports.write_explanation(explanation).parent
        text = f"{STALL} {seconds:.0f} s. {explanation} The stacks of all ranks are in {stacks}."
        if self.rank == 0:
            _log.warning("%s", text)  # which the console shows
        else:
            sys.stderr.write(f"hvdtrain: WARNING: {text}\n")
            sys.stderr.flush()

    def _end(self, explanation: str, seconds: float) -> None:
        if self.leave is not None:
            self.leave()
            return
        cause = f"{STALL} {seconds:.0f} s. {explanation}"
        write_failure("stall", self.rank, cause, HvdtrainError.exit_code)
        close_logs_before_exit()
        os._exit(HvdtrainError.exit_code)


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
        total_steps=max(setup.total_steps, step),  # a run may go on with fewer --epochs than are trained
        epochs=setup.epochs,
    )
    by_host = None
    reports: Reports = StallReports(folder.stalls / start, topology.size)
    if summarizes(setup.config.metrics_detail, topology.size):
        by_host = HostHeartbeats(folder.path, node_name(), is_first=topology.local_rank == 0)
        reports = HostStalls(folder.stalls / start, topology.size, LocalFolder(folder.path, node_name()))
    interval = interval_of(topology.size, by_host is not None)
    heartbeats = HeartbeatWriter(folder.path, first, interval, by_host=by_host)
    with holding_logs() if by_host else nullcontext(), heartbeats, _watchdog(setup, topology.rank, reports, step):
        yield


def _watchdog(
    setup: RunSetup, rank: int, reports: StallReports | HostStalls, step: int
) -> AbstractContextManager[object]:
    config = setup.config
    if config.watchdog == "never":
        return nullcontext()
    seconds = None if config.watchdog == "auto" else seconds_of(config.watchdog, "--watchdog")
    leave = end_connections if setup.may_change_workers else None
    limits = Limits(seconds, most=config.stall_timeout)
    return Watchdog(rank, reports, limits, step, ends=config.watchdog_action == "end", leave=leave)
