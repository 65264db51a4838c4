"""The launcher's end of the process that talks to a cluster, and its lines to the agents in the cluster's places."""

import itertools
import json
import math
import os
import queue
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import dropwhile
from typing import IO, Any, cast

from hvdtrain.errors import UsageError
from hvdtrain.launch.hosts.host import Host
from hvdtrain.launch.placed.seat_agent import TOKEN_BYTES
from hvdtrain.launch.ssh.line import Line, LineError
from hvdtrain.launch.supervisor.signals import SignalInbox

_LEAVE_SECONDS = 20.0  # for places to be given back
_CONNECT_SECONDS = 5.0
_GONE_SECONDS = 30.0  # for the cluster to notice that a host is lost
_LOOK_SECONDS = 0.1
_SHOWN = 2**16  # characters of what the process has complained of
_WORDS = 400  # of them, in a message
_TRACEBACK = "Traceback (most recent call last)"
_QUIET_SECONDS = 10.0  # of waiting for places, before that is said


@dataclass(frozen=True, slots=True)
class System:
    """What gives places, such as Ray."""

    name: str
    broker: str  # module of the process that talks to it
    hint: str  # what to do where it gives none
    address: str  # of the cluster; empty where the system itself finds it


class PlacedCluster(AbstractContextManager["PlacedCluster"]):
    """Places in a cluster, from entering to leaving. It is the `Discovery` of its hosts and the `Reach` to them.

    `request` is what the broker gets as its first line; `link_seconds` as `Reach` has it; `notify` is called in a
    thread after each message of the broker; `say` shows people a line.
    """

    def __init__(
        self,
        system: System,
        request: Mapping[str, Any],
        link_seconds: float,
        notify: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self.system = system
        self.link_seconds = link_seconds
        self.hosts: tuple[Host, ...] = ()
        self.gpus: Mapping[str, list[str]] = {}  # host → GPUs of its workers, as the cluster calls them
        self.gone = ""  # why there is no connection to the cluster any more, once there is none
        self._request, self._notify, self._say = request, notify, say
        self._refusal: UsageError | None = None
        self._complaints: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._numbers = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._changed = threading.Condition()

    def __enter__(self) -> "PlacedCluster":
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  `__exit__` closes it
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", self.system.broker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # out of reach of the terminal's signals
        )
        self._in, self._out = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)
        self._thread = threading.Thread(target=self._listen, name="cluster", daemon=True)
        self._thread.start()
        self._send(self._request)
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(OSError):
            self._in.close()
        try:
            self._process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join()
        self._errors.close()

    def await_hosts(self, seconds: float, inbox: SignalInbox) -> signal.Signals | None:
        """Wait until the job has its places; returns a signal that came meanwhile. Raises UsageError: it gets none."""
        deadline, said_at = time.monotonic() + seconds, time.monotonic() + _QUIET_SECONDS
        while not self.hosts and not self.gone and self._refusal is None and time.monotonic() < deadline:
            select.select([inbox], [], [], max(0.0, min(said_at, deadline) - time.monotonic()))
            if numbers := inbox.take():
                return numbers[0]
            if time.monotonic() >= said_at:
                where = f" at {self.system.address}" if self.system.address else ""
                self._say(f"hvdtrain launch: waiting for {self.system.name}{where}, for at most {seconds:g} s ...")
                said_at = math.inf
        if self._refusal is not None:
            raise self._refusal
        if not self.hosts:
            why = f": {self.gone}" if self.gone else f" within {seconds:g} s"
            raise UsageError(
                f"{self.system.name} did not give the job its places{why}.",
                "Nothing was started.",
                self.system.hint,
            )
        return None

    def take_complaints(self) -> list[str]:
        return [self._complaints.get() for _ in range(self._complaints.qsize())]

    def line_to(self, host: str) -> Line:
        return PlacedLine(self, host)

    def call(self, host: str, token: str, seconds: float, is_wanted: Callable[[], bool]) -> tuple[str, int]:
        """Let the host's seat run an agent for `token`; returns where it listens. Raises LineError."""
        number = next(self._numbers)
        self._send({"call": host, "number": number, "token": token})
        answer = self._wait_for(lambda: self._answers.pop(number, None), seconds, is_wanted)
        if "error" in answer:
            raise LineError(str(answer["error"]))
        address, port = answer["address"]
        return str(address), int(port)

    def await_loss(self, host: str, is_wanted: Callable[[], bool]) -> None:
        """Wait until the cluster, too, has noticed that the host is lost; it may put other hosts in its place."""
        with suppress(LineError):
            self._wait_for(lambda: all(each.name != host for each in self.hosts) or None, _GONE_SECONDS, is_wanted)

    def _wait_for(self, found: Callable[[], Any], seconds: float, is_wanted: Callable[[], bool]) -> Any:
        deadline = time.monotonic() + seconds
        with self._changed:
            while (result := found()) is None:
                if self.gone or not is_wanted() or time.monotonic() > deadline:
                    raise LineError(self.gone or f"{self.system.name} did not answer in time")
                self._changed.wait(_LOOK_SECONDS)
        return result

    def _send(self, message: Mapping[str, Any]) -> None:
        with suppress(OSError, ValueError):  # it is gone, or not wanted any more: who waits for an answer is told
            self._in.write(json.dumps(message).encode() + b"\n")
            self._in.flush()

    def _listen(self) -> None:
        with self._out as out:
            for line in out:
                with self._changed:
                    self._take(json.loads(line))
                    self._changed.notify_all()
                self._notify()
        code = self._process.wait()
        with self._changed:
            self.gone = f"the process that talks to {self.system.name} ended with exit code {code}{self._last_words()}"
            self._changed.notify_all()
        self._notify()

    def _take(self, message: dict[str, Any]) -> None:
        if "hosts" in message:
            self.gpus = {name: gpus for name, _, gpus in message["hosts"]}
            self.hosts = tuple(Host(name, slots) for name, slots, _ in message["hosts"])
        elif "refused" in message:
            self._refusal = UsageError(*message["refused"])
        elif "complaint" in message:
            self._complaints.put(message["complaint"])
        else:
            self._answers[message["number"]] = message

    def _last_words(self) -> str:
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _SHOWN))
        said = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        # An error may have several lines: it begins behind the stack of the last traceback, which is indented.
        stack = max((number + 1 for number, line in enumerate(said) if _TRACEBACK in line), default=len(said))
        cause = list(dropwhile(lambda line: line.startswith(" "), said[stack:])) or said[-1:]
        words = " ".join(" ".join(cause).split())
        return f"; its last words: {words[:_WORDS].rstrip('.')}" if words else ""


class PlacedLine:
    """A connection to the agent in a seat."""

    def __init__(self, cluster: PlacedCluster, host: str) -> None:
        self._cluster, self._host = cluster, host
        self._connection: socket.socket | None = None
        self._is_wanted = True

    def open(self, seconds: float) -> tuple[int, int]:
        token = secrets.token_hex(TOKEN_BYTES // 2)
        try:
            address = self._cluster.call(self._host, token, seconds, lambda: self._is_wanted)
            self._connection = socket.create_connection(address, _CONNECT_SECONDS)
            self._connection.sendall(token.encode())
        except LineError:
            self._cluster.await_loss(self._host, lambda: self._is_wanted)
            raise
        except OSError as error:
            self._cluster.await_loss(self._host, lambda: self._is_wanted)
            reason = error.strerror or error
            raise LineError(f"its agent cannot be called from this machine at {address[0]}: {reason}") from error
        self._connection.settimeout(None)
        return self._connection.fileno(), self._connection.fileno()

    def hang_up(self) -> None:
        self._shut(socket.SHUT_WR)

    def kill(self) -> None:
        self._is_wanted = False
        self._shut(socket.SHUT_RDWR)

    def ended(self, _seconds: float) -> str:
        return ""

    def last_words(self) -> str:
        return ""

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _shut(self, how: int) -> None:
        with suppress(OSError):
            if self._connection is not None:
                self._connection.shutdown(how)
