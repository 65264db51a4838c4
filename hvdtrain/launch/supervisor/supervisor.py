"""Watch over the workers of one start, on all hosts: pass on what they write, and end all when one fails."""

import selectors
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from hvdtrain.comm.rendezvous.server import RendezvousServer
from hvdtrain.errors import RESUMABLE
from hvdtrain.failure_record import FailureRecord, is_raised, pass_on_failure
from hvdtrain.launch.processes.worker import WorkerExit
from hvdtrain.launch.processes.worker_group import WorkerGroup
from hvdtrain.launch.supervisor.console import Console
from hvdtrain.launch.supervisor.diagnosis import (
    SHOWN_CHARACTERS,
    USAGE,
    JobOutcome,
    diagnose,
    has_cause,
    lingering,
    start_timed_out,
    words_of_others,
)
from hvdtrain.launch.supervisor.elastic import Elastic, FixedWorkers
from hvdtrain.launch.supervisor.newcomers import KILLED_SECONDS
from hvdtrain.launch.supervisor.signals import SignalAction, SignalInbox, SignalPolicy, for_workers
from hvdtrain.launch.supervisor.worker_state import WorkerState

LAST_WORDS_SECONDS = 3.0  # after the first failure the others have this long to notice it, and to say so
LINGER_SECONDS = 60.0  # after the first worker has ended well, the others are waited for so long without a word
_HOLD_SECONDS = 10.0  # the longest that other ranks' lines are kept before all ranks have met


@dataclass(eq=False)
class Supervisor:
    """One start of a job, whose workers are ordered to start already, in a group for each host.

    This fills in `workers`, which are in the order of their ranks. They meet at `server`; None: they meet elsewhere.
    Seconds: `start_timeout` until all ranks are connected (None: not watched), `grace` from a forwarded signal to
    SIGKILL. `elastic` decides after a loss whether the others go on, and adds workers.
    """

    groups: Sequence[WorkerGroup]
    workers: Sequence[WorkerState]
    console: Console
    inbox: SignalInbox
    start_timeout: float | None
    grace: float
    server: RendezvousServer | None
    elastic: Elastic | FixedWorkers = field(default_factory=FixedWorkers)

    def __post_init__(self) -> None:
        self._ended = 0
        self._connected = self._ever_connected = self._one_ended_well = False
        # Times of the monotonic clock, None: never.
        self._start_by = _after(self.start_timeout)  # all ranks must be connected
        self._hold_until = _after(_HOLD_SECONDS)  # other ranks' lines are held back no longer
        self._kill_at: float | None = None  # whoever runs is killed
        self._give_up_at: float | None = None  # whoever runs after that is not waited for
        self._linger_until: float | None = None  # people are told of whoever runs after that
        self._signals = SignalPolicy()
        self._hurried_by: signal.Signals | None = None
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
                self._act_on_changes()
        outcome = self._outcome()
        self._print(outcome)
        self._pass_on_cause(outcome)
        losses = self.elastic.losses
        causes = losses.mended_causes
        return replace(outcome, mended=losses.mended, first_cause=losses.cause, mended_causes=causes)

    def _seconds_to_deadline(self) -> float | None:
        of_elastic = (self.elastic.departures.deadline, self.elastic.deadline if self._may_go_on else None)
        own_times = (self._start_by, self._hold_until, self._kill_at, self._give_up_at, self._linger_until)
        all_times = (*own_times, *of_elastic)
        first = min((at for at in all_times if at is not None), default=None)
        return None if first is None else min(max(0.0, first - time.monotonic()), LONGEST_WAIT_SECONDS)

    def _outcome(self) -> JobOutcome:
        stopped_by = self._signals.stopped_by
        if self._late is not None:  # a request to stop may have come while its workers were killed
            if stopped_by is None:
                return self._late
            return replace(self._late, code=128 + stopped_by, may_restart=False)
        if self.elastic.gave_up and stopped_by is None:
            return JobOutcome(1, message=self.elastic.gave_up, may_restart=True)
        workers = [worker for worker in self.workers if not worker.was_replaced]
        connected = self._connected or self._all_are_connected()
        return diagnose(workers, stopped_by, connected, self.console.held, self._hurried_by, self.elastic.size)

    @property
    def wrong_hosts(self) -> set[str]:
        """On which workers have computed wrongly."""
        return {worker.host for worker in self.workers if worker.computes_wrongly}

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
        self.elastic.hear(rank, message)

    def ended(self, rank: int, end: WorkerExit) -> None:
        worker = self.workers[rank]
        if worker.end is not None:
            return
        self.console.finish(worker.rank)
        worker.end, worker.order = end, self._ended
        self._ended += 1
        self._notice_connections()  # its notice may be on the way
        if self.elastic.goes_on_without(rank, self._ever_connected and self._may_go_on):
            return
        if end.failure is not None and end.failure.kind == "done":
            self.console.say(f"hvdtrain launch: rank {worker.rank}{worker.on_host} {end.failure.cause}.")
        if end.failed and self._give_up_at is None:
            self._await_others(self.grace if end.code == RESUMABLE else LAST_WORDS_SECONDS)
        elif not self._one_ended_well:
            self._one_ended_well, self._linger_until = True, _after(LINGER_SECONDS)

    def _await_others(self, seconds: float) -> None:
        """After a failure: one that exits with 75 has saved its checkpoint, and others may still be writing. Who was
        asked to stop may need all of the grace time; but before the ranks were ever connected nothing is there to save,
        and those that have come wait for the one that has failed."""
        if self._kill_at is None:
            self._kill_at, self._start_by = _after(seconds), None
        elif self.start_timeout is not None and not self._ever_connected:
            self._kill_at = min(self._kill_at, time.monotonic() + seconds)

    def _on_signals(self) -> None:
        self._notice_connections()
        for number in self.inbox.take():
            self._obey(number)

    def _obey(self, number: signal.Signals) -> None:
        """The first starts the grace period, SIGTERM after a notice restarts it, a second SIGINT or SIGTERM ends it."""
        earlier = self._signals.stopped_by
        action = self._signals.action(number, time.monotonic())
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
        if self._signals.stopped_by != earlier:
            self.elastic.stop()
            self.console.patient = False
            if self._give_up_at is None:
                self._kill_at = _after(self.grace)
            self._start_by = None

    def _kill(self) -> None:
        self._kill_at, self._give_up_at = None, _after(KILLED_SECONDS)
        for group in self.groups:
            group.kill()

    def _notice_connections(self) -> None:
        """Once all ranks are connected, however late, nothing is held back and no deadline of the start is left."""
        if not self._connected and self._all_are_connected():
            self._connected = self._ever_connected = True
            self._hold_until = self._start_by = None
            self.console.release_all()

    def _all_are_connected(self) -> bool:
        if self.server is None:
            return False
        alone = self.elastic.may_be_alone and self.server.size == 1  # a single worker connects to nobody
        return alone or self.server.are_all_connected

    @property
    def _may_go_on(self) -> bool:
        """Whether nothing ends all workers: who was asked to stop goes on until it has saved."""
        return self._give_up_at is None and (self._kill_at is None or self._signals.stopped_by is not None)

    def _act_on_deadlines(self) -> None:
        if self.elastic.gathers:
            self._start_by = None  # the next world has its own
        if _is_due(self._hold_until):
            self._hold_until = None
            if self._kill_at is None:
                self.console.release_all()
        if _is_due(self._start_by):
            self._notice_connections()  # its notice may be on the way
        if _is_due(self._start_by):
            self._start_by, self._kill_at = None, _after(0.0)
            there = (self.server.connected, self.server.arrived) if self.server else ()
            self._late = start_timed_out(self.workers, there, self.start_timeout or 0.0, self.console.held)
        if _is_due(self._linger_until):
            self._name_lingering()
        if _is_due(self._kill_at):
            self._kill()
        if _is_due(self._give_up_at):
            self._give_up_at = None
            for number in range(len(self.workers)):
                self.ended(number, WorkerExit(-signal.SIGKILL, by_us=True))

    def _name_lingering(self) -> None:
        self._linger_until = None
        if self._kill_at is None and self._give_up_at is None and self._ended < len(self.workers):
            self.console.say(lingering(self.workers, LINGER_SECONDS))

    def _act_on_changes(self) -> None:
        for number in self.elastic.departures.overdue():
            self._give_up(number)
        if not self._may_go_on:
            return
        self._notice_connections()
        if self.elastic.act(self._connected):
            self.server, self._connected = self.elastic.server, False
            self._start_by = _after(self.start_timeout) if self._signals.stopped_by is None else None
        if self.elastic.gave_up:  # which `run` reports
            self._kill()

    def _give_up(self, number: int) -> None:
        worker = self.workers[number]
        self.console.say(
            f"hvdtrain launch: process {worker.process}{worker.on_host} has not ended {KILLED_SECONDS:g} s after "
            "SIGKILL: it waits inside the kernel, usually for a dead disk, or its host does not answer. It is given up."
        )
        self.ended(number, WorkerExit(-signal.SIGKILL, by_us=True))

    def _print(self, outcome: JobOutcome) -> None:
        message, root = outcome.message, outcome.root_cause_rank
        if outcome.code == USAGE and root is not None and not message:
            self.console.release(root)
            self.console.drop_held(worker.rank for worker in self.workers if worker.code == USAGE)  # it says the same
        elif root is not None and message and not self._leaves_words(root):
            self._drop_quoted(message, root)
        self.console.release_all()
        if is_raised() and message:
            for words in words_of_others(self.workers, root):
                self.console.say(words)
        if is_raised() and has_cause(outcome):
            self.console.end_line()  # an exception follows
        elif message:
            self.console.say(message)

    def _drop_quoted(self, message: str, rank: int) -> None:
        """All that is held of the rank, if the report quotes all of it; else what it quotes of a traceback."""
        quoted = [line.strip() for line in message.splitlines()[1:]]
        held = self.console.held_lines(rank)
        if len(held) <= len(quoted) and all(line[:SHOWN_CHARACTERS].strip() in message for line in held):
            self.console.drop_held([rank])
        else:
            self.console.drop_quoted_errors(rank, quoted, SHOWN_CHARACTERS)

    def _leaves_words(self, rank: int) -> bool:
        """Whether the message does not quote the lines that are held of this rank."""
        failure = self.workers[rank].failure
        return is_raised() and failure is not None and bool(failure.detail)

    def _pass_on_cause(self, outcome: JobOutcome) -> None:
        """For a program that has started this launcher and asks for the cause of its end."""
        root = outcome.root_cause_rank
        if outcome.code == 0 or root is None:
            return
        worker = self.workers[root]
        failure = worker.failure
        if failure is None or failure.kind == "done":
            host = worker.host or socket.gethostname()
            failure = FailureRecord("signal", root, host, outcome.cause, outcome.code)
        if is_raised() and (failure.is_consequence or not failure.detail):
            failure = replace(failure, detail=outcome.message)
        if failure.kind == "unfinished":  # whoever gets it has not left it
            failure = replace(failure, kind="error")
        pass_on_failure(replace(failure, exit_code=outcome.code))


LONGEST_WAIT_SECONDS: Final = 86400.0
"""Of one call of the system, which takes no number of seconds above 2,147,483."""


def _after(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def _is_due(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline
