"""What a launcher does through agents: ask several at once, and let one start workers."""

import selectors
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hvdtrain.errors import UsageError
from hvdtrain.failure_record import FailureRecord
from hvdtrain.launch.processes.worker import WorkerExit
from hvdtrain.launch.processes.worker_group import ERR, WorkerEvents
from hvdtrain.launch.ssh.frames import Frame
from hvdtrain.launch.ssh.link import AgentError, HostLink

Request = tuple[HostLink, str, Mapping[str, Any]]  # whom to ask, what, and with which arguments


def ask_at_once(requests: Sequence[Request], deadline_s: float) -> list[Any]:
    """Ask different agents at the same time; the answers, or an `AgentError` each, in the order of `requests`."""
    for link, do, arguments in requests:
        link.begin_to_ask(do, arguments)
    deadline = time.monotonic() + deadline_s
    answers: list[Any] = []
    for link, _, _ in requests:
        try:
            answers.append(link.answer(deadline))
        except AgentError as error:
            answers.append(error)
    return answers


class RemoteWorkerGroup:
    """Workers of `ranks` that an agent, which has said hello, starts by an order that it understands.

    Args: `joins_others`: whether others of the job run already. Then an order that is refused ends nothing but its
    workers; otherwise it is a UsageError, in `watch` or whenever the answer comes.
    """

    def __init__(
        self, link: HostLink, ranks: Iterable[int], order: Mapping[str, Any], joins_others: bool = False
    ) -> None:
        self.link = link
        self._joins_others = joins_others
        self.has_lost = False  # whether the agent is lost, and whoever watches was told that its workers are
        self._running = set(ranks)
        link.send("start", **order)

    def add_beside_others(self, ranks: Iterable[int], order: Mapping[str, Any]) -> None:
        """Let the agent start more workers, from now on as with `joins_others`."""
        self._joins_others = True
        self._running.update(ranks)
        self.link.send("start", **order)

    def watch(self, selector: selectors.BaseSelector, events: WorkerEvents) -> None:
        def read_frames() -> None:
            for frame in self.link.take():
                self._dispatch(frame, events)
            if self.has_lost:
                selector.unregister(self.link)

        selector.register(self.link, selectors.EVENT_READ, read_frames)
        if self.link.lost:  # before this began to listen
            self._report_lost(events)

    def send(self, number: signal.Signals) -> None:
        self.link.send("signal", number=int(number))

    def kill(self, rank: int | None = None) -> None:
        self.link.send("kill", rank=rank)

    def tell(self, rank: int, order: Mapping[str, Any]) -> None:
        self.link.send("tell", rank=rank, order=order)

    def _dispatch(self, frame: Frame, events: WorkerEvents) -> None:
        fields = frame.fields
        if frame.kind == "lost":
            self._report_lost(events)
        elif frame.kind == "refused":
            self._refused(fields, events)
        elif fields.get("rank") not in self._running:
            return  # of a rank that is not its own, or has ended
        elif frame.kind == "started":
            events.started(fields["rank"], int(fields["process"]))
        elif frame.kind == "output":
            events.wrote(fields["rank"], int(fields["stream"]), frame.body)
            self.link.send("read", bytes=len(frame.body))
        elif frame.kind == "told":
            events.told(fields["rank"], fields["message"])
        elif frame.kind == "ended":
            failure = fields["failure"] and FailureRecord(**fields["failure"])
            end = WorkerExit(int(fields["code"]), bool(fields["by_us"]), bool(fields["out_of_memory"]), failure=failure)
            self._report_end(fields["rank"], end, events)

    def _refused(self, fields: Mapping[str, Any], events: WorkerEvents) -> None:
        error = UsageError(f"{self.link.name}: {fields['fact']}", str(fields["conflict"]), str(fields["hint"]))
        if not self._joins_others:
            raise error
        for rank in self._running & set(fields["numbers"]):
            events.wrote(rank, ERR, f"{error}\n".encode())
            self._report_end(rank, WorkerExit(error.exit_code), events)

    def _report_lost(self, events: WorkerEvents) -> None:
        self.has_lost = True
        for rank in sorted(self._running):
            self._report_end(rank, WorkerExit(1, lost=self.link.lost), events)

    def _report_end(self, rank: int, end: WorkerExit, events: WorkerEvents) -> None:
        self._running.discard(rank)
        events.ended(rank, end)
