"""The output of all workers on one terminal: rank 0 as it comes, every other rank's lines behind its number."""

import errno
import os
import select
import signal
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress

from hvdtrain.errors import HvdtrainError
from hvdtrain.launch.processes.worker_group import ERR, OUT
from hvdtrain.launch.supervisor.signals import SignalInbox

_HELD_BYTES = 2**16
_PIPE_BYTES = 4096
_LINE_BYTES = 2**16  # a line longer than this is passed on in pieces


class Console:
    """Standard output and standard error of the launcher.

    Rank 0's bytes pass unchanged, so that its progress bar redraws itself; of a line without one, when it is complete.
    Other ranks' lines pass whole, as `[1] …`. While `holding`, they are kept instead: until all ranks have met, ranks
    tend to fail alike, and one voice suffices. `inbox`: signals to the launcher. When one comes, a reader that pauses
    is not waited for any longer.
    """

    def __init__(self, inbox: SignalInbox | None = None) -> None:
        self.holding = True
        self.patient = True  # whether to wait for a reader that pauses; else what it does not take is lost
        self.may_vanish = False  # whether the terminal is gone: then what cannot be written is not a failure
        self._inbox = inbox
        self._unfinished = False  # rank 0's bar is on the cursor's line
        self._rest: dict[tuple[int, int], bytes] = defaultdict(bytes)
        self._held: dict[int, list[tuple[int, bytes]]] = defaultdict(list)

    def take(self, rank: int, stream: int, data: bytes) -> None:
        if rank == 0:
            data = self._rest.pop((0, stream), b"") + data
            end = data.rfind(b"\n") + 1
            if b"\r" not in data[end:] and len(data) - end < _LINE_BYTES:
                data, self._rest[0, stream] = data[:end], data[end:]
            self._write_some(stream, data)
            return
        *lines, rest = (self._rest[rank, stream] + data).split(b"\n")
        if len(rest) > _LINE_BYTES:
            lines, rest = [*lines, rest], b""
        self._rest[rank, stream] = rest
        self._lines(rank, stream, lines)

    def finish(self, rank: int) -> None:
        """The rank has ended: its last line may lack an end."""
        for stream in (OUT, ERR):
            rest = self._rest.pop((rank, stream), b"")
            if rest and rank == 0:
                self._write_some(stream, rest)
            elif rest:
                self._lines(rank, stream, [rest])

    def release(self, rank: int) -> None:
        for stream, text in self._held.pop(rank, []):
            self._whole_lines(stream, text)

    def release_all(self) -> None:
        self.holding = False
        for rank in sorted(self._held):
            self.release(rank)

    def drop_held(self, ranks: Iterable[int]) -> None:
        """Forget what is held of `ranks`: another rank has said the same, or the report quotes it."""
        for rank in ranks:
            self._held.pop(rank, None)

    def drop_quoted_errors(self, rank: int, quoted: Sequence[str], characters: int) -> None:
        """Forget the last lines on standard error that are held of `rank`, as far as the report quotes them, by their
        first `characters`."""
        held, left = self._held.get(rank, []), len(quoted)  # a line may come more often than it is quoted
        for place in reversed([number for number, (stream, _) in enumerate(held) if stream == ERR]):
            lines = held[place][1].splitlines(keepends=True)
            while lines and left and lines[-1].decode(errors="replace")[:characters].strip() in quoted:
                lines.pop()
                left -= 1
            held[place] = (ERR, b"".join(lines))
            if lines:
                break

    def held_lines(self, rank: int) -> list[str]:
        """What is held of a rank."""
        text = b"".join(part for _, part in self._held.get(rank, []))
        return text.decode(errors="replace").splitlines()

    @property
    def held(self) -> frozenset[int]:
        return frozenset(self._held)

    def end_line(self) -> None:
        """Put the cursor at the beginning of a line: rank 0's bar may be before it."""
        self._whole_lines(ERR, b"")

    def say(self, text: str) -> None:
        """The launcher's own words, on standard error."""
        self._whole_lines(ERR, text.encode(errors="replace") + b"\n")

    def _write_some(self, stream: int, data: bytes) -> None:
        if data:
            self._write(stream, data)
            self._unfinished = not data.endswith(b"\n")

    def _lines(self, rank: int, stream: int, lines: list[bytes]) -> None:
        text = b"".join(b"[%d] %s\n" % (rank, line.rstrip(b"\r").rpartition(b"\r")[2]) for line in lines)
        if not text:
            return
        if not self.holding:
            self._whole_lines(stream, text)
            return
        self._held[rank].append((stream, text))
        if sum(len(part) for _, part in self._held[rank]) > _HELD_BYTES:
            self.release(rank)

    def _whole_lines(self, stream: int, text: bytes) -> None:
        if self._unfinished:
            text = b"\n" + text
            self._unfinished = False
        self._write(stream, text)

    def _write(self, stream: int, data: bytes) -> None:
        try:
            while data and self._has_room(stream):
                # A pipe that is writable has room for 4096 bytes: pipe(7), PIPE_BUF.
                with suppress(BlockingIOError):  # another process was faster
                    data = data[os.write(stream, data[:_PIPE_BYTES]) :]
        except OSError as error:
            if self._is_hangup(error):
                return
            raise HvdtrainError(
                f"The launcher's output cannot be written: {error.strerror or error}.",
                "Nobody would see what goes wrong, so the workers were stopped.",
                "keep the reading end open, or send the output to a file.",
            ) from error

    def _has_room(self, stream: int) -> bool:
        """Wait for a reader that pauses, but only until a signal comes: workers must get it."""
        poll = select.poll()
        poll.register(stream, select.POLLOUT)
        if self._inbox is not None:
            poll.register(self._inbox, select.POLLIN)
        woken = False
        while self.patient:
            if stream in (file for file, _ in poll.poll()):
                break
            if self._inbox is not None:
                woken = True
                self.patient = not self._inbox.has_signal()
        if woken and self._inbox is not None:
            self._inbox.wake()  # the bytes that were read here were for the supervisor
        return stream in (file for file, _ in poll.poll(0))

    def _is_hangup(self, error: OSError) -> bool:
        """Whether the terminal is gone: workers are asked to save as by its SIGHUP, which may come a moment later."""
        if error.errno == errno.EIO and not self.may_vanish and signal.getsignal(signal.SIGHUP) != signal.SIG_DFL:
            self.may_vanish = True
            signal.raise_signal(signal.SIGHUP)
        return self.may_vanish
