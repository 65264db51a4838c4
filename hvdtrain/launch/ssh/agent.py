"""The process that starts workers on another host for the launcher, and reports how they end. Run by ssh:

    python -P -m hvdtrain.launch.ssh.agent SECONDS

It takes orders on standard input and reports on standard output (`hvdtrain.launch.ssh.frames`). It ends with all of
its workers when its input ends, or when the launcher has answered none of its heartbeats for SECONDS: a link that
drops packets in silence ends no input. A heartbeat carries the time of this host's clock at which it was sent, and
the answer brings it back; so the launcher, which waits SECONDS after the heartbeat arrived, never gives this host
up before its workers are killed.
"""

import os
import queue
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import Any

from hvdtrain.errors import UsageError
from hvdtrain.launch.processes.orphan_reaper import OrphanReaper, kill_job
from hvdtrain.launch.processes.worker import WorkerExit, WorkerSpec, require_none_left
from hvdtrain.launch.processes.worker_group import LocalWorkerGroup
from hvdtrain.launch.ssh.folder_on_hosts import FoldersHere
from hvdtrain.launch.ssh.frames import MAX_BODY_BYTES, PREAMBLE, BrokenFrameError, Frame, FrameReader
from hvdtrain.launch.ssh.host_addresses import interface_towards
from hvdtrain.launch.worker_environment import worker_environment
from hvdtrain.topology.topology import RankAssignment
from hvdtrain.world_channel import WORLD_VARIABLE

HEARTBEATS = 5  # heartbeats within the time after which silence means loss
_UNREAD_BYTES = 2**19  # of output that is under way to the launcher; workers wait when it is more
_READ_BYTES = 2**16
_GONE = (BrokenPipeError, ConnectionResetError)


class Agent:
    """One connection to a launcher, which is taken for dead after `seconds` without an answer.

    `questions`: name → what answers it, in a thread of its own. `start` starts workers by the fields of an order.
    `files`: descriptors of its input and its output. `called_from`: the launcher's address as it is seen here, "" on
    the launcher's own machine; None: as sshd says.
    """

    def __init__(
        self,
        seconds: float,
        questions: Mapping[str, Callable[..., Any]],
        start: Callable[["Agent", dict[str, Any]], None] | None = None,
        files: tuple[int, int] = (0, 1),
        called_from: str | None = None,
    ) -> None:
        self._seconds = seconds
        self._questions = dict(questions)
        self._start_workers = start or start_workers
        self._input, self._output = files
        seen = os.environ.get("SSH_CONNECTION", "").split()
        self._called_from = called_from if called_from is not None else "".join(seen[:1])
        self._reader = FrameReader()
        self._outbox = bytearray(PREAMBLE)
        self._writing = False
        self._unread = 0
        self._group: LocalWorkerGroup | None = None
        self._token: str | None = None
        self._reaper: OrphanReaper | None = None
        self._selector = selectors.DefaultSelector()
        self._stack = ExitStack()
        self._answers: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._answered = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lives_until = time.monotonic() + seconds
        self._next_heartbeat = 0.0
        self._over = False

    def run(self) -> None:
        """Serve until the launcher is gone, and leave nothing running."""
        os.set_blocking(self._input, False)
        os.set_blocking(self._output, False)
        self._selector.register(self._input, selectors.EVENT_READ, self._on_input)
        self._selector.register(self._answered, selectors.EVENT_READ, self._send_answers)
        cores = len(os.sched_getaffinity(0))
        self._send("hello", name=socket.gethostname(), cores=cores, launcher=self._called_from)
        with self._stack, self._selector:
            while not self._over:
                for key, _ in self._selector.select(max(0.0, self._next_heartbeat - time.monotonic())):
                    key.data()
                self._send_heartbeat()
            self._sweep()

    def start(
        self, host_token: str, specs: Callable[[str], list[WorkerSpec]], folder: str | None, numbers: Sequence[int] = ()
    ) -> None:
        """Start workers in `folder` (None: here) and report what they do. Beside those that run, if there are any.

        Otherwise what runs here with the `host_token` of the job on this host is killed first. `specs` makes the
        workers of those `numbers`, given the job tokens for their environment.
        """
        if self._token is None:
            # Of its own: an earlier agent of this host that is still dying must not kill this one's workers.
            self._token = f"{host_token}.{os.getpid()}"
            self._reaper = self._stack.enter_context(OrphanReaper(self._token, adopts=True))
        try:
            if self._group is not None:
                for spec in specs(f"{host_token},{self._token}"):
                    self._group.add(spec)
                return
            require_none_left(kill_job(host_token), UsageError)  # of an agent that was cut off a moment ago
            self._group = LocalWorkerGroup(specs(f"{host_token},{self._token}"), folder)
        except UsageError as error:
            said: dict[str, Any] = {"fact": error.fact, "conflict": error.conflict, "hint": error.hint}
            self._send("refused", b"", numbers=list(numbers), **said)
            if self._group is None:  # else others run
                self._sweep()
            return
        self._group.watch(self._selector, self)

    def started(self, rank: int, process: int) -> None:
        self._send("started", rank=rank, process=process)

    def wrote(self, rank: int, stream: int, data: bytes) -> None:
        for at in range(0, len(data), MAX_BODY_BYTES):
            self._send("output", data[at : at + MAX_BODY_BYTES], rank=rank, stream=stream)
        self._unread += len(data)
        self._pause_or_go_on()

    def told(self, rank: int, message: Mapping[str, Any]) -> None:
        self._send("told", rank=rank, message=message)

    def ended(self, rank: int, end: WorkerExit) -> None:
        self._send("ended", rank=rank, **asdict(end))

    def _on_input(self) -> None:
        try:
            data = os.read(self._input, _READ_BYTES)
            for frame in self._reader.feed(data):
                self._obey(frame.kind, frame.fields)
        except BlockingIOError:
            return
        except (*_GONE, BrokenFrameError):
            data = b""
        if not data:
            self._over = True

    def _sweep(self) -> list[int]:
        left = self._reaper.sweep() if self._reaper is not None else []
        if self._group is not None:
            self._group.close()
        return left

    def _obey(self, kind: str, order: dict[str, Any]) -> None:
        if kind == "start":
            self._start_workers(self, order)
        elif kind == "signal" and self._group is not None:
            self._group.send(signal.Signals(order["number"]))
        elif kind == "kill" and self._group is not None:
            self._group.kill(order.get("rank"))
        elif kind == "tell" and self._group is not None:
            self._group.tell(order["rank"], order["order"])
        elif kind == "ask":
            self._ask(order)
        elif kind == "read":
            self._unread -= order["bytes"]
            self._pause_or_go_on()
        elif kind == "heartbeat":
            self._lives_until = max(self._lives_until, order["sent"] + self._seconds)

    def _ask(self, question: dict[str, Any]) -> None:
        number, do, arguments = question["number"], question["do"], question["arguments"]
        if do == "sweep":  # not in a thread: it ends the workers
            self._send("answer", number=number, ok=self._sweep())
            self._group = None
            self._unread = 0
        else:
            threading.Thread(target=self._answer, args=(number, do, arguments), daemon=True).start()

    def _answer(self, number: int, do: str, arguments: dict[str, Any]) -> None:
        try:
            fields: dict[str, Any] = {"ok": self._questions[do](**arguments)}
        except Exception as error:  # sent to whoever has asked, whatever it is
            fields = {"error": str(error) or type(error).__name__}
        self._answers.put(Frame("answer", {"number": number, **fields}))
        with suppress(OSError):
            os.eventfd_write(self._answered, 1)

    def _pause_or_go_on(self) -> None:
        if self._group is not None:
            self._group.pause(self._unread > _UNREAD_BYTES)

    def _send_heartbeat(self) -> None:
        now = time.monotonic()
        if now >= self._lives_until:
            self._over = True
        elif now >= self._next_heartbeat:
            self._next_heartbeat = min(now + self._seconds / HEARTBEATS, self._lives_until)
            self._send("heartbeat", sent=now)

    def _send_answers(self) -> None:
        os.eventfd_read(self._answered)
        while not self._answers.empty():
            self._write(self._answers.get())

    def _send(self, kind: str, body: bytes = b"", **fields: Any) -> None:
        self._write(Frame(kind, fields, body))

    def _write(self, frame: Frame) -> None:
        self._outbox += frame.encode()
        self._flush()

    def _flush(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: os.write(self._output, self._outbox)]
        except BlockingIOError:
            pass  # the rest is sent when there is room
        except _GONE:
            self._outbox.clear()
            self._over = True
        if bool(self._outbox) != self._writing:
            self._writing = not self._writing
            if self._writing:
                self._selector.register(self._output, selectors.EVENT_WRITE, self._flush)
            else:
                self._selector.unregister(self._output)


def start_workers(agent: Agent, job: dict[str, Any]) -> None:
    """Start the workers of an order of `hvdtrain.launch.ssh.launcher`."""

    def specs(tokens: str) -> list[WorkerSpec]:
        interface = interface_towards(job["launcher"], job["nics"])
        inherited = {**os.environ, **job["variables"]}
        places = [RankAssignment(**fields) for fields in job["places"]]
        common = (job["rendezvous"], interface, tokens, job["restarts"], job["cause"])
        world = {} if job["world"] is None else {WORLD_VARIABLE: job["world"]}
        made = [worker_environment(inherited, place, *common) | world for place in places]
        numbered = zip(job["numbers"], made, strict=True)
        return [WorkerSpec(number, job["command"], variables, bool(world)) for number, variables in numbered]

    agent.start(str(job["token"]), specs, job["folder"], job["numbers"])


if __name__ == "__main__":
    folders = FoldersHere()
    try:
        Agent(float(sys.argv[1]), folders.questions).run()
    finally:
        folders.remove()
