"""Watch over the workers of one start, on all hosts: pass on what they write, and end all when one fails."""

import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hvdtrain.comm.rendezvous.server import RendezvousServer
from hvdtrain.errors import RESUMABLE
from hvdtrain.launch.processes.worker import WorkerExit
from hvdtrain.launch.processes.worker_group import WorkerGroup
from hvdtrain.launch.supervisor.console import Console
from hvdtrain.launch.supervisor.departures import KILLED_SECONDS
from hvdtrain.launch.supervisor.diagnosis import USAGE, JobOutcome, diagnose, quoted
from hvdtrain.launch.supervisor.elastic import Elastic
from hvdtrain.launch.supervisor.signals import SignalAction, SignalInbox, SignalPolicy, for_workers
from hvdtrain.launch.supervisor.worker_state import WorkerState
from hvdtrain.stop_requests import FINAL

LAST_WORDS_SECONDS = 3.0
"""After the first failure the others have this long to notice it, and to say so."""

_HOLD_SECONDS = 10.0  # the longest that other ranks' lines are kept before all ranks have met
_QUOTED_RANKS = 4  # of those that never came


@dataclass(eq=False)
class Supervisor:
    """One start of a job, whose workers are ordered to start already, in a group for each host.

    This fills in `workers`, which are in the order of their ranks. They meet at `server`; None: they meet elsewhere.
    Seconds: `start_timeout` until all ranks are connected (None: not watched), `grace` from a forwarded signal to
    SIGKILL.

    `elastic` decides after a loss whether the others go on, and adds workers; None: all are ended.
    """

    groups: Sequence[WorkerGroup]
    workers: Sequence[WorkerState]
    console: Console
    inbox: SignalInbox
    start_timeout: float | None
    grace: float
    server: RendezvousServer | None
    elastic: Elastic | None = None

    def __post_init__(self) -> None:
        self._ended = 0
        begin = time.monotonic()
        self._start_by = None if self.start_timeout is None else begin + self.start_timeout
        self._hold_until: float | None = begin + _HOLD_SECONDS
        self._kill_at: float | None = None
        self._give_up_at: float | None = None
        self._policy = SignalPolicy()
        self._stopped_by: signal.Signals | None = None
        self._hurried_by: signal.Signals | None = None
        self._connected = False
        self._late: JobOutcome | None = None

    def run(self) -> JobOutcome:
        """Return when every worker has ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.inbox, selectors.EVENT_READ, self._on_signals)
            for group in self.groups:
                group.watch(selector, self)
            self._selector = selector
            while self._ended < len(self.workers):
                for key, _ in selector.select(self._seconds_to_deadline()):
                    key.data()
                self._act_on_deadlines()
        self._connected = self._connected or self._all_are_connected()
        workers = [worker for worker in self.workers if not worker.was_replaced]
        if self._late is None and self._stopped_by is None and self.elastic is not None and self.elastic.gave_up:
            self._late = JobOutcome(1, message=self.elastic.gave_up, may_restart=True)
        outcome = self._late or diagnose(
            workers, self._stopped_by, self._connected, self.console.held, self._hurried_by
        )
        self._print(outcome)
        if self.elastic is None:
            return outcome
        return replace(outcome, mended=self.elastic.losses.mended, first_cause=self.elastic.losses.cause)

    def watch(self, group: WorkerGroup) -> None:
        """Watch over the workers of one more group, too."""
        self.groups = [*self.groups, group]
        group.watch(self._selector, self)

    def started(self, rank: int, process: int) -> None:
        self.workers[rank].process = process

    def wrote(self, rank: int, stream: int, data: bytes) -> None:
        worker = self.workers[rank]
        worker.tail.add(stream, data)
        self.console.take(worker.rank, stream, data)

    def told(self, rank: int, message: Mapping[str, Any]) -> None:
        if self.elastic is not None and isinstance(message.get("ready"), int):
            self.elastic.ready(rank, message["ready"])
        elif self.elastic is not None and "trains" in message:
            self.elastic.trains(message["trains"])
        elif self.elastic is not None and "fixed" in message:
            self.elastic.fix()

    def ended(self, rank: int, end: WorkerExit) -> None:
        worker = self.workers[rank]
        if worker.end is not None:
            return
        self.console.finish(worker.rank)
        worker.end, worker.order = end, self._ended
        self._ended += 1
        if self.elastic is not None:
            self._notice_connections()  # its notice may be on the way
            if self.elastic.goes_on_without(rank, self._connected and self._may_go_on):
                return
        if end.failed and self._kill_at is None and self._give_up_at is None:
            # A worker that exits with 75 has saved its checkpoint; others may still be writing.
            seconds = self.grace if end.code == RESUMABLE else LAST_WORDS_SECONDS
            self._kill_at = time.monotonic() + seconds
            self._start_by = None

    def _on_signals(self) -> None:
        self._notice_connections()
        for number in self.inbox.take():
            self._forward(number)

    def _forward(self, number: signal.Signals) -> None:
        """The first starts the grace period, SIGTERM after a notice restarts it, a second SIGINT or SIGTERM ends it."""
        action = self._policy.action(number, time.monotonic())
        if number == signal.SIGHUP:
            self.console.may_vanish = True
        if action is SignalAction.KILL:
            if self._give_up_at is None:
                self._hurried_by = number
            self._kill()
            return
        if action is SignalAction.FORWARD:
            for group in self.groups:
                group.send(for_workers(number))
        if self._stopped_by is None or (number in FINAL and self._stopped_by not in FINAL):
            self._stopped_by = number
            if self.elastic is not None:
                self.elastic.stop()
            self.console.patient = False
            if self._give_up_at is None:
                self._kill_at = time.monotonic() + self.grace
            self._start_by = None

    def _kill(self) -> None:
        self._kill_at = None
        self._give_up_at = time.monotonic() + KILLED_SECONDS
        for group in self.groups:
            group.kill()

    def _notice_connections(self) -> None:
        """Once all ranks are connected, however late, nothing is held back and no deadline of the start is left."""
        if not self._connected and self._all_are_connected():
            self._connected = True
            self._hold_until = None
            self._start_by = None
            self.console.release_all()

    def _all_are_connected(self) -> bool:
        if self.server is None:
            return False
        alone = self.elastic is not None and self.server.size == 1  # a single worker connects to nobody
        return alone or len(self.server.connected) == self.server.size

    @property
    def _may_go_on(self) -> bool:
        """Whether nothing ends all workers: who was asked to stop goes on until it has saved."""
        return self._give_up_at is None and (self._kill_at is None or self._stopped_by is not None)

    def _seconds_to_deadline(self) -> float | None:
        all_deadlines = [self._start_by, self._hold_until, self._kill_at, self._give_up_at]
        if self.elastic is not None:
            all_deadlines.append(self.elastic.departures.deadline)
            all_deadlines.append(self.elastic.deadline if self._may_go_on else None)
        deadlines = [at for at in all_deadlines if at is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _act_on_deadlines(self) -> None:
        now = time.monotonic()
        if self._hold_until is not None and now >= self._hold_until:
            self._hold_until = None
            if self._kill_at is None:
                self.console.release_all()
        if self._start_by is not None and now >= self._start_by:
            self._notice_connections()  # its notice may be on the way
        if self._start_by is not None and now >= self._start_by:
            self._start_by = None
            self._late = self._start_timed_out()
            self._kill_at = now
        if self._kill_at is not None and now >= self._kill_at:
            self._kill()
        if self._give_up_at is not None and now >= self._give_up_at:
            self._give_up_at = None
            for number in range(len(self.workers)):
                self.ended(number, WorkerExit(-signal.SIGKILL, by_us=True))
        if self.elastic is not None:
            self._act_on_changes(self.elastic)

    def _act_on_changes(self, elastic: Elastic) -> None:
        for number in elastic.departures.overdue():
            self._give_up(number)
        if self._may_go_on:
            self._change_world(elastic)

    def _give_up(self, number: int) -> None:
        worker = self.workers[number]
        self.console.say(
            f"hvdtrain launch: process {worker.process}{worker.on_host} runs {KILLED_SECONDS:g} s after SIGKILL: it "
            "waits inside the kernel, usually for a dead disk. It is not waited for any longer."
        )
        self.ended(number, WorkerExit(-signal.SIGKILL, by_us=True))

    def _change_world(self, elastic: Elastic) -> None:
        self._notice_connections()
        if elastic.act(self._connected):
            self.server = elastic.launcher.server
            self._connected = False
            is_watched = self.start_timeout is not None and self._stopped_by is None
            self._start_by = time.monotonic() + (self.start_timeout or 0.0) if is_watched else None
        if elastic.gave_up:  # which `run` reports
            self._kill()

    def _start_timed_out(self) -> JobOutcome:
        workers = [worker for worker in self.workers if worker.end is None]
        for there in (self.server.connected, self.server.arrived) if self.server else ():
            workers = [worker for worker in workers if worker.rank not in there] or workers
        named = ", ".join(f"rank {worker.rank} (process {worker.process}{worker.on_host})" for worker in workers)
        held = self.console.held
        words = [f"Rank {worker.rank}: {quoted(worker, worker.rank in held)}" for worker in workers[:_QUOTED_RANKS]]
        return JobOutcome(
            1,
            workers[0].rank,
            f"hvdtrain launch: {named} did not join the other ranks within {self.start_timeout:g} seconds.\n"
            + "\n".join(words)
            + "\nHINT: if it only needs longer to begin, give --start-timeout more seconds.",
            may_restart=True,
        )

    def _print(self, outcome: JobOutcome) -> None:
        if outcome.code == USAGE and outcome.root_cause_rank is not None and not outcome.message:
            self.console.release(outcome.root_cause_rank)
            self.console.drop_held(self.console.held)
        elif outcome.root_cause_rank is not None and outcome.message:
            self.console.drop_held([outcome.root_cause_rank])
        self.console.release_all()
        if outcome.message:
            self.console.say(outcome.message)
