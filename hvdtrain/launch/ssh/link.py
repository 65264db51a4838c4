"""The launcher's end of the connection to one host's agent."""

import itertools
import math
import os
import queue
import select
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from hvdtrain.launch.ssh.frames import BrokenFrameError, Frame, FrameReader
from hvdtrain.launch.ssh.line import Line, LineError
from hvdtrain.launch.supervisor.signals import SignalInbox

_READ_BYTES = 2**18
_STEPS = 5  # in the time after which silence means loss
_LAST_SECONDS = 2.0  # for a line to end after its output has ended
_numbers = itertools.count(1)  # of questions: an answer that comes too late is not taken for another one


class AgentError(Exception):
    """An agent was lost, refused, or did not answer in time; the text says which."""


class HostLink:
    """An agent that runs at the end of a line, or is starting: within `hello_seconds`, and lost after `link_seconds` of
    silence.

    A thread reads what it says and answers its heartbeats, whatever else the launcher waits for: a paused terminal must
    not look like a dead launcher.
    """

    def __init__(self, name: str, line: Line, hello_seconds: float, link_seconds: float) -> None:
        self.name = name
        self.hello: dict[str, Any] | None = None  # what the agent said of its host, once it did
        self.lost = ""  # why there is no agent any more, once there is none
        self._began = self.heard = time.monotonic()  # when something came from it last
        self._hello_seconds = hello_seconds
        self._link_seconds = link_seconds
        self._reader = FrameReader(skips_greeting=True)
        self._frames: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._suspended, self._looked = 0.0, math.inf
        self._asked = 0
        self._writing = threading.Lock()
        self._line = line
        self._to: int | None = None  # the agent's input, while there is one
        self._hung_up = False
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._listen, name=f"link to {name}", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Readable when `take` has something."""
        return self._event

    def wait(self, seconds: float, inbox: SignalInbox | None = None) -> bool:
        """Whether `take` has something within `seconds`, or a signal has come to `inbox`."""
        return _is_ready((self, *([inbox] if inbox is not None else [])), select.POLLIN, seconds)

    @property
    def greeting(self) -> str:
        """What the host's shell printed before the agent began."""
        return self._reader.greeting

    @property
    def called_from(self) -> str:
        """The address from which the host's sshd was called, as the host says; empty if there is no ssh between."""
        return str((self.hello or {}).get("launcher", ""))

    def take(self) -> list[Frame]:
        """What came since the last call. The last frame of all is "lost"."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._event)
        return [self._frames.get() for _ in range(self._frames.qsize())]

    def send(self, kind: str, **fields: Any) -> None:
        """Send an order. An agent that is gone does not get it, which `take` tells."""
        data = Frame(kind, fields).encode()
        with self._writing, suppress(OSError):
            while data and self._to is not None:
                data = data[os.write(self._to, data) :]

    def ask(self, do: str, seconds: float, /, **arguments: Any) -> Any:
        """The answer to a question, whose arguments the agent's module has; AgentError: none in time, or a refusal."""
        self.begin_to_ask(do, arguments)
        return self.answer(time.monotonic() + seconds)

    def begin_to_ask(self, do: str, arguments: Mapping[str, Any]) -> None:
        """Send a question; its answer is taken before the next one."""
        self._asked = next(_numbers)
        self.send("ask", do=do, number=self._asked, arguments=arguments)

    def answer(self, deadline: float) -> Any:
        """The answer to the last question, by `deadline` of the monotonic clock; errors as `ask`."""
        while not self.lost:
            for frame in self.take():
                if frame.kind == "answer" and frame.fields["number"] == self._asked:
                    if "error" in frame.fields:
                        raise AgentError(str(frame.fields["error"]))
                    return frame.fields["ok"]
            if not self.wait(max(0.0, deadline - time.monotonic())):
                raise AgentError("it did not answer in time")
        raise AgentError(self.lost)

    def hang_up(self) -> None:
        """End the agent's input: it kills its workers and ends."""
        with self._writing:
            self._to, self._hung_up = None, True
            self._line.hang_up()

    def close(self, seconds: float = 0.0) -> None:
        """Wait until the agent has ended, but no longer than `seconds`: then end the line."""
        self.hang_up()
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._line.kill()
            self._thread.join()
        self._line.close()
        os.close(self._event)

    def _listen(self) -> None:
        why = "the thread that listens to it failed"
        try:
            file, to = self._line.open(self._hello_seconds)
            with self._writing:
                self._to = None if self._hung_up else to
            why = self._follow(file)
        except LineError as error:
            why = str(error)
        finally:
            how = self._line.ended(_LAST_SECONDS if why == _ENDED else 0.0)
            self.lost = self._explained(why + how if why == _ENDED else why)
            self._put(Frame("lost"))

    def _follow(self, file: int) -> str:
        """Read all until nothing more can come; returns why not."""
        why = ""
        while not why:
            if self._wait_for(file):
                why = self._read_frames(file)
            elif self._time_left() == 0 and self.hello is None:
                why = f"its agent did not start within {self._hello_seconds:g} s"
            elif self._time_left() == 0:
                why = f"nothing was heard from it for {self._link_seconds:g} s"
        return why

    def _wait_for(self, file: int) -> bool:
        """Wait one step: if far more time than that has passed since the last one, this process itself was paused."""
        step = min(self._time_left(), self._link_seconds / _STEPS)
        is_ready = _is_ready([file], select.POLLIN, step)
        since, self._looked = self._looked, time.monotonic()
        self._suspended = max(self._suspended, self._looked - since - step)
        return is_ready

    def _time_left(self) -> float:
        deadline = self._began + self._hello_seconds if self.hello is None else self.heard + self._link_seconds
        return max(0.0, deadline - time.monotonic())

    def _read_frames(self, file: int) -> str:
        """Why nothing more can come; empty while it can."""
        try:
            data = os.read(file, _READ_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            return _ENDED
        self.heard = time.monotonic()
        try:
            for frame in self._reader.feed(data):
                if frame.kind == "heartbeat":
                    self._answer_heartbeat(frame)
                else:
                    self.hello = frame.fields if frame.kind == "hello" else self.hello
                    self._put(frame)
        except BrokenFrameError as error:
            return str(error)
        return ""

    def _answer_heartbeat(self, heartbeat: Frame) -> None:
        """Unless an order is on its way: then that, or the next heartbeat's answer, shows that somebody is there."""
        data = Frame("heartbeat", {"sent": heartbeat.fields.get("sent", 0.0)}).encode()
        if self._writing.acquire(blocking=False):
            try:
                # A pipe that is writable has room for 4096 bytes: pipe(7), PIPE_BUF.
                with suppress(OSError):
                    if self._to is not None and _is_ready([self._to], select.POLLOUT, 0):
                        os.write(self._to, data)
            finally:
                self._writing.release()

    def _put(self, frame: Frame) -> None:
        self._frames.put(frame)
        with suppress(OSError):
            os.eventfd_write(self._event, 1)

    def _explained(self, why: str) -> str:
        if self._suspended > self._link_seconds / 2:
            why += f"; this launcher itself stood still for {self._suspended:.0f} s (stopped by Ctrl-Z or a debugger?)"
        said = self._line.last_words()
        return f"{why}; its last words: {said}" if said else why


def _is_ready(files: Iterable[int | HostLink | SignalInbox], event: int, seconds: float) -> bool:
    """Whether one of `files` is. Unlike select(2), with any number of hosts, and so of open files."""
    poll = select.poll()
    for file in files:
        poll.register(file, event)
    return bool(poll.poll(1000 * min(seconds, 86400.0)))  # the system takes no more than 24 days


_ENDED = "the connection to its agent ended"
