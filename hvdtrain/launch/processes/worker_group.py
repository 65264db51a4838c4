"""The workers of one host, behind one protocol: started by this process, or by an agent on another host."""

import re
import selectors
import signal
import socket
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, Protocol

from hvdtrain.errors import UsageError
from hvdtrain.launch.processes.worker import Worker, WorkerExit, WorkerSpec
from hvdtrain.topology.control_group import group_folders, read_text

OUT, ERR = 1, 2  # the streams of a worker
_GROUP_COUNTERS = ("memory.events", "memory.oom_control")
_OUT_OF_MEMORY = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_LAST_READS = 64  # a pipe contains less, unless a child of the worker still writes


class WorkerEvents(Protocol):
    """Who wants to know what workers do. `rank` is the worker's number: its first rank, or a further number."""

    def started(self, rank: int, process: int) -> None:
        """The worker runs, as that process of its host."""

    def wrote(self, rank: int, stream: int, data: bytes) -> None:
        """It wrote `data` to OUT or ERR."""

    def told(self, rank: int, message: Mapping[str, Any]) -> None:
        """It said something by its `WorldChannel`."""

    def ended(self, rank: int, end: WorkerExit) -> None:
        """It has ended; nothing comes from it after that."""


class WorkerGroup(Protocol):
    """Workers of one host that were ordered to start."""

    def watch(self, selector: selectors.BaseSelector, events: WorkerEvents) -> None:
        """Register with the selector functions without arguments, which tell `events` what happens."""

    def send(self, number: signal.Signals) -> None:
        """Pass a signal on to every worker that runs."""

    def kill(self, rank: int | None = None) -> None:
        """SIGKILL every worker that runs, or the one of that number, and its process group."""

    def tell(self, rank: int, order: Mapping[str, Any]) -> None:
        """Send an order to a worker by its `WorldChannel`."""


class LocalWorkerGroup:
    """Children of this process, in `folder` (None: here); UsageError: one cannot be started, though others may run."""

    def __init__(self, specs: Iterable[WorkerSpec], folder: str | None = None) -> None:
        self._workers: list[Worker] = []
        self._readers: dict[IO[bytes], Callable[[], None]] = {}
        self._folder = folder
        self._selector: selectors.BaseSelector | None = None
        self._events: WorkerEvents | None = None
        self._kills_before = out_of_memory_kills()
        self._paused = False
        try:
            for spec in specs:
                self._workers.append(Worker(spec, folder))
        except BaseException:
            self.close()
            raise

    def watch(self, selector: selectors.BaseSelector, events: WorkerEvents) -> None:
        self._selector, self._events = selector, events
        for worker in self._workers:
            self._watch(worker, selector, events)

    def add(self, spec: WorkerSpec) -> None:
        """Start one more worker in a group that is watched. One that cannot be started has ended: others run."""
        if self._selector is None or self._events is None:
            raise ValueError("the group is not watched")
        try:
            worker = Worker(spec, self._folder)
        except UsageError as error:
            self._events.wrote(spec.rank, ERR, f"{error}\n".encode())
            self._events.ended(spec.rank, WorkerExit(error.exit_code))
            return
        self._workers.append(worker)
        self._watch(worker, self._selector, self._events)

    def _watch(self, worker: Worker, selector: selectors.BaseSelector, events: WorkerEvents) -> None:
        events.started(worker.rank, worker.process.pid)
        selector.register(worker.pidfd, selectors.EVENT_READ, partial(self._on_end, worker, events))
        for stream, pipe in zip((OUT, ERR), worker.pipes, strict=True):
            self._readers[pipe] = partial(self._on_output, worker, stream, pipe, events)
            if not self._paused:
                selector.register(pipe, selectors.EVENT_READ, self._readers[pipe])
        if worker.channel is not None:
            selector.register(worker.channel, selectors.EVENT_READ, partial(self._on_message, worker, events))

    def pause(self, paused: bool) -> None:
        """Leave unread what workers write, or go on reading it: a worker whose pipe is full waits."""
        if paused == self._paused or self._selector is None:
            return
        self._paused = paused
        for pipe, read in self._readers.items():
            if paused:
                self._selector.unregister(pipe)
            else:
                self._selector.register(pipe, selectors.EVENT_READ, read)

    def send(self, number: signal.Signals) -> None:
        for worker in self._workers:
            worker.send(number)

    def kill(self, rank: int | None = None) -> None:
        for worker in self._workers:
            if rank in (None, worker.rank):
                worker.kill()

    def tell(self, rank: int, order: Mapping[str, Any]) -> None:
        for worker in self._workers:
            if worker.rank == rank:
                worker.tell(order)

    def close(self) -> None:
        """Forget all workers, which have ended or were killed, and close their pipes."""
        for pipe in list(self._readers):
            self._forget(pipe)
        for worker in self._workers:
            self._unregister(worker.pidfd)
            self._unregister(worker.channel)
            worker.close()
        self._workers.clear()

    def _on_output(self, worker: Worker, stream: int, pipe: IO[bytes], events: WorkerEvents) -> None:
        if pipe not in self._readers:
            return  # the selector saw this in the same moment as the worker's end, which has read all and closed it
        data = worker.read(pipe)
        if data:
            events.wrote(worker.rank, stream, data)
        elif data == b"":
            self._forget(pipe)

    def _on_message(self, worker: Worker, events: WorkerEvents) -> None:
        messages = worker.read_channel()
        if messages is None:
            self._unregister(worker.channel)
        for message in messages or ():
            events.told(worker.rank, message)

    def _on_end(self, worker: Worker, events: WorkerEvents) -> None:
        self._unregister(worker.pidfd)
        for stream, pipe in zip((OUT, ERR), worker.pipes, strict=True):
            for data in takewhile(bool, (worker.read(pipe) for _ in range(_LAST_READS))):
                events.wrote(worker.rank, stream, data or b"")
            self._forget(pipe)
        worker.sweep()
        end = worker.reap(out_of_memory_kills() > self._kills_before)
        self._unregister(worker.channel)
        self._workers.remove(worker)
        worker.close()
        events.ended(worker.rank, end)

    def _forget(self, pipe: IO[bytes]) -> None:
        if self._readers.pop(pipe, None) is not None:
            self._unregister(pipe)

    def _unregister(self, file: IO[bytes] | socket.socket | int | None) -> None:
        # A selector that was closed has no map.
        if self._selector is not None and file is not None and file in (self._selector.get_map() or ()):
            self._selector.unregister(file)


def out_of_memory_kills(root: Path = Path("/")) -> int:
    """How often the kernel has killed a process for lack of memory, in this control group or on the whole machine.

    cgroup v2: memory.events, v1: memory.oom_control, both in Documentation/admin-guide of the kernel; the machine's:
    /proc/vmstat. Tests give another root folder.
    """
    counters = [folder / name for folder in group_folders(root, "memory") for name in _GROUP_COUNTERS]
    counts = [_OUT_OF_MEMORY.search(read_text(path) or "") for path in (root / "proc/vmstat", *counters)]
    return max((int(match[1]) for match in counts if match), default=0)
