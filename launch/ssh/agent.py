"""The launcher's hands on another host: starts workers there, and tells what becomes of them. Run by ssh:

    python -P -m hvdtrain.launch.ssh.agent SECONDS

It takes orders on standard input and reports on standard output (`hvdtrain.launch.ssh.frames`). It ends with all of
its workers when its input ends, or when the launcher has answered none of its beats for SECONDS: a link that
drops packets in silence ends no input. A beat carries the time of this host's clock at which it was sent, and
the answer brings it back; so the launcher, which waits SECONDS after the beat arrived, never gives this host
up before its workers are killed.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

from hvdtrain.errors import UsageError
from hvdtrain.launch.hosts.rank_assignment import RankAssignment
from hvdtrain.launch.processes.orphan_reaper import OrphanReaper, kill_job
from hvdtrain.launch.processes.worker import WorkerExit, WorkerSpec
from hvdtrain.launch.processes.worker_group import LocalWorkerGroup
from hvdtrain.launch.ssh.frames import MAX_BODY_BYTES, PREAMBLE, BrokenFrameError, Frame, FrameReader
from hvdtrain.launch.ssh.interface import interface_towards
from hvdtrain.launch.worker_environment import worker_environment

BEATS = 5
"""Beats within the time after which silence means loss."""

_UNREAD_BYTES = 2**19  # of output that is under way to the launcher; workers wait when it is more
_READ_BYTES = 2**16
_GONE = (BrokenPipeError, ConnectionResetError)


@final
class Agent:
    """One connection to a launcher.

    Args:
        seconds: without an answer, until the launcher is taken for dead.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._reader = FrameReader()
        self._outbox = bytearray(PREAMBLE)
        self._writing = False
        self._unread = 0
        self._group: LocalWorkerGroup | None = None
        self._token: str | None = None
        self._reaper: OrphanReaper | None = None
        self._selector = selectors.DefaultSelector()
        self._stack = ExitStack()
        self._lives_until = time.monotonic() + seconds
        self._next_beat = 0.0
        self._over = False

    def run(self) -> None:
        """Serve until the launcher is gone, and leave nothing running."""
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        self._selector.register(0, selectors.EVENT_READ, self._on_input)
        cores = len(os.sched_getaffinity(0))
        seen = os.environ.get("SSH_CONNECTION", "").split()
        self._send("hello", name=socket.gethostname(), cores=cores, launcher=seen[0] if seen else "")
        with self._stack, self._selector:
            while not self._over:
                for key, _ in self._selector.select(max(0.0, self._next_beat - time.monotonic())):
                    key.data()
                self._beat()
            self._sweep()

    def started(self, rank: int, process: int) -> None:
        self._send("started", rank=rank, process=process)

    def wrote(self, rank: int, stream: int, data: bytes) -> None:
        for at in range(0, len(data), MAX_BODY_BYTES):
            self._send("output", data[at : at + MAX_BODY_BYTES], rank=rank, stream=stream)
        self._unread += len(data)
        self._pause_or_go_on()

    def ended(self, rank: int, end: WorkerExit) -> None:
        self._send("ended", rank=rank, **asdict(end))

    def _on_input(self) -> None:
        try:
            data = os.read(0, _READ_BYTES)
            for frame in self._reader.feed(data):
                if frame.kind in _ORDERS:
                    _ORDERS[frame.kind](self, frame.fields)
        except BlockingIOError:
            return
        except (*_GONE, BrokenFrameError):
            data = b""
        if not data:
            self._over = True

    def _start(self, job: dict[str, Any]) -> None:
        host_token = str(job["token"])
        if self._token is None:
            # Of its own: an earlier agent of this host that is still dying must not kill this one's workers.
            self._token = f"{host_token}.{os.getpid()}"
            self._reaper = self._stack.enter_context(OrphanReaper(self._token, adopts=True))
        try:
            _require_swept(host_token)
            self._group = LocalWorkerGroup(_orders(job, f"{host_token},{self._token}"), job["folder"])
        except UsageError as error:
            self._send("refused", fact=error.fact, conflict=error.conflict, hint=error.hint)
            self._sweep()
            return
        self._group.watch(self._selector, self)

    def _sweep(self) -> list[int]:
        left = self._reaper.sweep() if self._reaper is not None else []
        if self._group is not None:
            self._group.close()
        return left

    def _signal(self, order: dict[str, Any]) -> None:
        if self._group is not None:
            self._group.send(signal.Signals(order["number"]))

    def _kill(self, _order: dict[str, Any]) -> None:
        if self._group is not None:
            self._group.kill()

    def _sweep_and_say_so(self, _order: dict[str, Any]) -> None:
        left = self._sweep()
        self._group = None
        self._unread = 0
        self._send("swept", left=left)

    def _look(self, order: dict[str, Any]) -> None:
        path = Path(order["folder"] or ".", order["path"])
        self._send("looked", exists=path.exists())

    def _read(self, order: dict[str, Any]) -> None:
        self._unread -= order["bytes"]
        self._pause_or_go_on()

    def _answered(self, order: dict[str, Any]) -> None:
        self._lives_until = max(self._lives_until, order["sent"] + self._seconds)

    def _pause_or_go_on(self) -> None:
        if self._group is not None:
            self._group.pause(self._unread > _UNREAD_BYTES)

    def _beat(self) -> None:
        now = time.monotonic()
        if now >= self._lives_until:
            self._over = True
        elif now >= self._next_beat:
            self._next_beat = min(now + self._seconds / BEATS, self._lives_until)
            self._send("beat", sent=now)

    def _send(self, kind: str, body: bytes = b"", **fields: Any) -> None:
        self._outbox += Frame(kind, fields, body).encode()
        self._flush()

    def _flush(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: os.write(1, self._outbox)]
        except BlockingIOError:
            pass  # the rest goes when there is room
        except _GONE:
            self._outbox.clear()
            self._over = True
        if bool(self._outbox) != self._writing:
            self._writing = not self._writing
            if self._writing:
                self._selector.register(1, selectors.EVENT_WRITE, self._flush)
            else:
                self._selector.unregister(1)


_ORDERS = {
    "start": Agent._start,
    "signal": Agent._signal,
    "kill": Agent._kill,
    "sweep": Agent._sweep_and_say_so,
    "look": Agent._look,
    "read": Agent._read,
    "beat": Agent._answered,
}


def _require_swept(token: str) -> None:
    """An agent before this one may have been cut off from its launcher a moment ago."""
    left = kill_job(token)
    if left:
        raise UsageError(
            f"Processes {', '.join(map(str, left))} of this job run here and cannot be killed.",
            "They wait inside the kernel, and may hold the run folder and the GPU.",
            "look at them with `ps -o pid,stat,wchan,cmd`; a dead network disk is the usual cause.",
        )


def _orders(job: dict[str, Any], tokens: str) -> list[WorkerSpec]:
    interface = interface_towards(job["launcher"], job["nics"])
    inherited = {**os.environ, **job["variables"]}
    orders = []
    for fields in job["places"]:
        place = RankAssignment(**fields)
        environment = worker_environment(inherited, place, job["rendezvous"], interface, tokens, job["restarts"])
        orders.append(WorkerSpec(place.rank, job["command"], environment))
    return orders


if __name__ == "__main__":
    Agent(float(sys.argv[1])).run()
