"""The launcher's end of the connection to one host's agent."""

from __future__ import annotations

import os
import queue
import select
import selectors
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, final

from hvdtrain.errors import UsageError
from hvdtrain.launch.ssh.frames import BrokenFrameError, Frame, FrameReader

_READ_BYTES = 2**18
_WORDS_BYTES = 4000
_STEPS = 5  # in the time after which silence means loss
_LAST_SECONDS = 2.0  # for ssh to end, and to say why, after its output has ended


@final
class HostLink:
    """A running agent, or one that is starting. A thread reads what it says and answers its beats, whatever else the
    launcher waits for: a terminal that stands still must not look like a dead launcher.

    Args:
        name: of the host.
        argv: ssh and so on, or the agent itself where the host is this machine.
        hello_seconds: until the agent must have said hello.
        link_seconds: of silence after that, until the host is lost.

    Raises:
        UsageError: the program cannot be started.
    """

    def __init__(self, name: str, argv: Sequence[str], hello_seconds: float, link_seconds: float) -> None:
        self.name = name
        self.hello: dict[str, Any] | None = None
        """What the agent said of its host, once it did."""
        self.lost = ""
        """Why there is no agent any more, once there is none."""
        self._began = self.heard = time.monotonic()
        """When something came from it last."""
        self._hello_seconds = hello_seconds
        self._link_seconds = link_seconds
        self._frames: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._words = b""
        self._stood_still = 0.0
        self._turn = threading.Lock()
        self._process = _started(argv)
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._listen, name=f"link to {name}", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Readable when `take` has something."""
        return self._event

    @property
    def called_from(self) -> str:
        """The address from which the host's sshd was called, as the host says; empty if there is no ssh between."""
        return str((self.hello or {}).get("launcher", ""))

    def take(self) -> list[Frame]:
        """What came since the last call. The last frame of all is "lost"."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._event)
        frames = []
        with suppress(queue.Empty):
            while True:
                frames.append(self._frames.get_nowait())
        return frames

    def send(self, kind: str, **fields: Any) -> None:
        """WorkerSpec something. An agent that is gone does not hear it, which `take` tells."""
        data = Frame(kind, fields).encode()
        with self._turn, suppress(OSError, ValueError):
            while data:
                data = data[os.write(self._stdin, data) :]

    def hang_up(self) -> None:
        """End the agent's input: it kills its workers and ends."""
        if self._process.stdin is not None:
            with self._turn, suppress(OSError):
                self._process.stdin.close()

    def close(self, seconds: float = 0.0) -> None:
        """Wait until the agent has ended, but no longer than `seconds`: then end ssh."""
        self.hang_up()
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._process.kill()
            self._thread.join()
        os.close(self._event)

    @property
    def _stdin(self) -> int:
        if self._process.stdin is None:
            raise RuntimeError("ssh's input is a pipe")
        return self._process.stdin.fileno()

    def _listen(self) -> None:
        why = "the thread that listens to it failed"
        try:
            why = self._follow()
        finally:
            self._process.kill()
            self._process.wait()
            self.lost = self._explained(why)
            self._put(Frame("lost"))

    def _follow(self) -> str:
        """Hear all until nothing more can come; returns why not."""
        reader = FrameReader(skips_greeting=True)
        out, err = self._process.stdout, self._process.stderr
        if out is None or err is None:
            raise RuntimeError("ssh's outputs are pipes")
        with selectors.DefaultSelector() as selector, out, err:
            selector.register(out, selectors.EVENT_READ)
            selector.register(err, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in self._select(selector)]
                if err in ready and not self._hear_words(err.fileno()):
                    selector.unregister(err)
                why = self._hear_frames(out.fileno(), reader) if out in ready else ""
                if why == _ENDED:
                    self._let_end(err.fileno())
                if why or self._patience() == 0:
                    return why or self._silence()

    def _select(self, selector: selectors.BaseSelector) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait in steps: one that takes far longer than it should shows that this process itself stood still."""
        step = min(self._patience(), self._link_seconds / _STEPS)
        began = time.monotonic()
        ready = selector.select(step)
        self._stood_still = max(self._stood_still, time.monotonic() - began - step)
        return ready

    def _patience(self) -> float:
        deadline = self._began + self._hello_seconds if self.hello is None else self.heard + self._link_seconds
        return max(0.0, deadline - time.monotonic())

    def _silence(self) -> str:
        if self.hello is None:
            return f"its agent did not start within {self._hello_seconds:g} s"
        return f"nothing was heard from it for {self._link_seconds:g} s"

    def _hear_words(self, file: int) -> bool:
        data = os.read(file, _READ_BYTES)
        self._words = (self._words + data)[-_WORDS_BYTES:]
        return bool(data)

    def _hear_frames(self, file: int, reader: FrameReader) -> str:
        """Why nothing more can come; empty while it can."""
        data = os.read(file, _READ_BYTES)
        if not data:
            return _ENDED
        self.heard = time.monotonic()
        try:
            for frame in reader.feed(data):
                self._hear(frame)
        except BrokenFrameError as error:
            return str(error)
        return ""

    def _hear(self, frame: Frame) -> None:
        if frame.kind == "beat":
            self._answer(frame)
            return
        if frame.kind == "hello":
            self.hello = frame.fields
        self._put(frame)

    def _answer(self, beat: Frame) -> None:
        """Unless an order is on its way: then that, or the next beat's answer, shows that somebody is there."""
        data = Frame("beat", {"sent": beat.fields.get("sent", 0.0)}).encode()
        if self._turn.acquire(blocking=False):
            try:
                # A pipe that is writable has room for 4096 bytes: pipe(7), PIPE_BUF.
                with suppress(OSError, ValueError):
                    if _is_ready(self._stdin, select.POLLOUT, 0):
                        os.write(self._stdin, data)
            finally:
                self._turn.release()

    def _put(self, frame: Frame) -> None:
        self._frames.put(frame)
        with suppress(OSError):
            os.eventfd_write(self._event, 1)

    def _let_end(self, err: int) -> None:
        """ssh's output has ended: let it say why, and end by itself."""
        deadline = time.monotonic() + _LAST_SECONDS
        while (left := deadline - time.monotonic()) > 0 and _is_ready(err, select.POLLIN, left):
            if not self._hear_words(err):
                break
        try:
            self._process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _explained(self, why: str) -> str:
        said = [line for line in self._words.decode(errors="replace").splitlines() if line.strip()]
        if why == _ENDED:
            why = f"{why} (exit code {self._process.returncode})"
        if self._stood_still > self._link_seconds / 2:
            why += (
                f"; this launcher itself stood still for {self._stood_still:.0f} s (stopped by Ctrl-Z or a debugger?)"
            )
        return f"{why}; its last words: {said[-1].strip()[:300]}" if said else why


def _started(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # out of reach of the terminal's signals: the launcher forwards them in its order
        )
    except OSError as error:
        fact = f"{argv[0]} cannot be started: {error.strerror or error}."
        if "-m" in argv[:3]:
            raise UsageError(fact, "Workers of this machine are started by it.", "check --python.") from error
        hint = "install it (Debian: apt-get install openssh-client)."
        raise UsageError(fact, "Agents on other hosts are started by it.", hint) from error


def _is_ready(file: int, event: int, seconds: float) -> bool:
    """Unlike select(2), with any number of hosts, and so of open files."""
    poll = select.poll()
    poll.register(file, event)
    return bool(poll.poll(1000 * seconds))


_ENDED = "the connection to its agent ended"
