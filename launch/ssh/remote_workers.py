"""The workers of another host, through its agent."""

from __future__ import annotations

import selectors
import signal
from collections.abc import Iterable, Mapping
from typing import Any, final

from hvdtrain.errors import UsageError
from hvdtrain.failure_record import FailureRecord
from hvdtrain.launch.processes.worker import WorkerExit
from hvdtrain.launch.processes.worker_group import WorkerEvents
from hvdtrain.launch.ssh.frames import Frame
from hvdtrain.launch.ssh.link import HostLink


@final
class RemoteWorkerGroup:
    """Workers that an agent starts.

    Args:
        link: to the agent, which has said hello.
        ranks: of its workers.
        kind: of the order that starts them: "start", or what another agent knows.
        order: the fields of that order.
    """

    def __init__(self, link: HostLink, ranks: Iterable[int], kind: str, order: Mapping[str, Any]) -> None:
        self._link = link
        self._running = set(ranks)
        link.send(kind, **order)

    def watch(self, selector: selectors.BaseSelector, events: WorkerEvents) -> None:
        selector.register(self._link, selectors.EVENT_READ, lambda: self._hear(events))
        if self._link.lost:  # before this began to listen
            self._lose(events)

    def send(self, number: signal.Signals) -> None:
        self._link.send("signal", number=int(number))

    def kill(self) -> None:
        self._link.send("kill")

    def _hear(self, events: WorkerEvents) -> None:
        for frame in self._link.take():
            self._tell(frame, events)

    def _tell(self, frame: Frame, events: WorkerEvents) -> None:
        fields = frame.fields
        if frame.kind == "lost":
            self._lose(events)
        elif frame.kind == "refused":
            fact = f"{self._link.name}: {fields['fact']}"
            raise UsageError(fact, str(fields["conflict"]), str(fields["hint"]))
        elif fields.get("rank") not in self._running:
            return  # of a rank that is not its own, or has ended
        elif frame.kind == "started":
            events.started(fields["rank"], int(fields["process"]))
        elif frame.kind == "output":
            events.wrote(fields["rank"], int(fields["stream"]), frame.body)
            self._link.send("read", bytes=len(frame.body))
        elif frame.kind == "ended":
            failure = fields["failure"] and FailureRecord(**fields["failure"])
            end = WorkerExit(int(fields["code"]), bool(fields["by_us"]), bool(fields["out_of_memory"]), failure=failure)
            self._end(fields["rank"], end, events)

    def _lose(self, events: WorkerEvents) -> None:
        for rank in sorted(self._running):
            self._end(rank, WorkerExit(1, lost=self._link.lost), events)

    def _end(self, rank: int, end: WorkerExit, events: WorkerEvents) -> None:
        self._running.discard(rank)
        events.ended(rank, end)
