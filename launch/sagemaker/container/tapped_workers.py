"""What workers say of their end, noticed while it passes by: later lines cannot push it out of memory."""

from __future__ import annotations

import selectors
import signal
from typing import final

from hvdtrain.launch.processes.worker import WorkerExit
from hvdtrain.launch.processes.worker_group import ERR, WorkerEvents, WorkerGroup
from hvdtrain.launch.sagemaker.failure import CauseParser

_LINE_BYTES = 4000  # of a line that is looked at


@final
class TappedWorkers:
    """A worker group whose workers' output is listened to.

    Args:
        group: the workers.
    """

    def __init__(self, group: WorkerGroup) -> None:
        self._group = group
        self._streams: dict[tuple[int, int], _Stream] = {}

    def cause(self, rank: int) -> str:
        """Why that worker failed, by its own words; empty if none of them tells it."""
        spoken = [self._streams[at] for at in sorted(self._streams, key=lambda at: at[1] != ERR) if at[0] == rank]
        return next(filter(None, (stream.cause for stream in spoken)), "")

    def watch(self, selector: selectors.BaseSelector, events: WorkerEvents) -> None:
        self._group.watch(selector, _Listening(events, self._streams))

    def send(self, number: signal.Signals) -> None:
        self._group.send(number)

    def kill(self) -> None:
        self._group.kill()


@final
class _Stream:
    """Lines of one stream of one worker, out of the pieces that come."""

    def __init__(self) -> None:
        self._listener = CauseParser()
        self._rest = b""

    def add(self, data: bytes) -> None:
        *whole, self._rest = (self._rest[-_LINE_BYTES:] + data).split(b"\n")
        for line in whole:
            self._listener.feed(line.rstrip(b"\r")[:_LINE_BYTES].decode(errors="replace"))

    @property
    def cause(self) -> str:
        if self._rest:
            self.add(b"\n")  # a worker that was killed leaves its last line unfinished
        return self._listener.cause


@final
class _Listening:
    """WorkerEvents on their way to `events`."""

    def __init__(self, events: WorkerEvents, streams: dict[tuple[int, int], _Stream]) -> None:
        self._events, self._streams = events, streams

    def started(self, rank: int, process: int) -> None:
        self._events.started(rank, process)

    def wrote(self, rank: int, stream: int, data: bytes) -> None:
        self._streams.setdefault((rank, stream), _Stream()).add(data)
        self._events.wrote(rank, stream, data)

    def ended(self, rank: int, end: WorkerExit) -> None:
        self._events.ended(rank, end)
