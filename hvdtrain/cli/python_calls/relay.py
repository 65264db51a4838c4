"""Between a child process and this one: its output to sys.stdout and sys.stderr, signals to it."""

import codecs
import os
import selectors
import signal
import subprocess
import sys
import time
from functools import partial
from typing import IO, Any, Final, Self

from hvdtrain.launch.supervisor.signals import SignalInbox
from hvdtrain.stop_requests import Repeat, StopRequests

SECONDS_TO_KILL: Final = 20.0
"""A launcher that has not ended so long after a second request is killed. It kills its own workers sooner."""

_READ_BYTES: Final = 2**16


class Relay:
    """Copies until the child has ended. `inbox`: signals to this process; None: it gets none, in other threads.

    A stream that the child has inherited is not copied.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", inbox: SignalInbox | None) -> None:
        self._process, self._inbox = process, inbox
        self._requests = StopRequests()
        self._kill_at: float | None = None
        self.was_interrupted = False
        """Whether SIGINT was passed on."""
        self._pidfd = os.pidfd_open(process.pid)
        self._copies = [
            (pipe, stream, codecs.getincrementaldecoder("utf-8")(errors="replace"))
            for pipe, stream in ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
            if pipe is not None
        ]
        for pipe, _, _ in self._copies:
            os.set_blocking(pipe.fileno(), False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._pidfd)
        for pipe, _, _ in self._copies:
            pipe.close()

    def run(self) -> int:
        """Returns the child's exit code, or minus the signal that killed it."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._pidfd, selectors.EVENT_READ, lambda: None)
            for pipe, stream, decoder in self._copies:
                selector.register(pipe, selectors.EVENT_READ, partial(self._copy, selector, pipe, stream, decoder))
            if self._inbox is not None:
                selector.register(self._inbox, selectors.EVENT_READ, self._pass_on)
            while self._process.poll() is None:
                for key, _ in selector.select(self._seconds_left()):
                    key.data()
                if self._kill_at is not None and time.monotonic() >= self._kill_at:
                    self._process.kill()
            for pipe, stream, decoder in self._copies:
                while self._copy(selector, pipe, stream, decoder):
                    pass
        return int(self._process.returncode)

    def _copy(self, selector: selectors.BaseSelector, pipe: IO[bytes], stream: Any, decoder: Any) -> bool:
        """What is there now; returns whether there may be more."""
        try:
            data = os.read(pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return False
        if text := decoder.decode(data, final=not data):
            stream.write(text)
            stream.flush()
        if not data and pipe in selector.get_map():
            selector.unregister(pipe)
        return bool(data)

    def _pass_on(self) -> None:
        for number in self._inbox.take() if self._inbox is not None else ():
            if self._process.poll() is None:
                self._process.send_signal(number)
                self.was_interrupted = self.was_interrupted or number == signal.SIGINT
            if self._requests.add(signal.Signals(number), time.monotonic()) is Repeat.SECOND and self._kill_at is None:
                self._kill_at = time.monotonic() + SECONDS_TO_KILL

    def _seconds_left(self) -> float | None:
        return None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
