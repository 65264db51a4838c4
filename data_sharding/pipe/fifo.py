"""One FIFO, opened and read without ever blocking for longer than its deadline."""

import errno
import fcntl
import os
import select
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from data_sharding.errors import LoaderTimeoutError, MissingDataError, PlanError
from data_sharding.loading.prefetch import OrderedPrefetch
from data_sharding.pipe.locks import OwnedDescriptor, StopEvent, lock_at_once

PIPE_BYTES: Final = 2**20
"""Asked of the kernel for each FIFO, and read at a time: the most an unprivileged process may have (fcntl(2),
/proc/sys/fs/pipe-max-size). Linux gives 64 KiB by itself, and switching threads for so little costs throughput."""

_GRACE_S: Final = 10.0
_APPEARANCE_POLL_S: Final = 0.01
_LATER_GRACE_S: Final = 2.0
"""What an agent may take between a later FIFO and an earlier one, should it make them out of order."""


@dataclass(frozen=True)
class PassName:
    """Which FIFO this is, as errors name it."""

    base: Path
    channel: str
    epoch: int
    rank: int

    @property
    def path(self) -> Path:
        """`<base>/<channel>_<epoch>`."""
        return self.base / f"{self.channel}_{self.epoch}"

    def __str__(self) -> str:
        return f"channel {self.channel}, epoch {self.epoch}, of rank {self.rank}"


def await_fifo(name: PassName, timeout_s: float) -> os.stat_result:
    """The FIFO's status once it exists; opens nothing. Raises LoaderTimeoutError, PlanError or MissingDataError."""
    begin = passed_since = time.monotonic()
    while True:
        try:
            status = os.stat(name.path)
            _require_fifo(name, status)
            return status
        except FileNotFoundError:
            now = time.monotonic()
        except OSError as error:
            raise _unreadable(name, error) from error
        later = [number for number in numbers_of(name.base, name.channel) if number > name.epoch]
        if not later:
            passed_since = now
        elif now - passed_since >= min(_LATER_GRACE_S, timeout_s):
            raise _passed_by(name, later)
        if now - begin >= timeout_s:
            raise _never_appeared(name, timeout_s)
        time.sleep(_APPEARANCE_POLL_S)


def numbers_of(base: Path, channel: str) -> list[int]:
    """Sorted numbers of the entries `<channel>_<number>` of a folder; none if there is no such folder."""
    try:
        names = os.listdir(base)
    except OSError:
        return []
    numbers = [name.removeprefix(f"{channel}_") for name in names if name.startswith(f"{channel}_")]
    return sorted(int(number) for number in numbers if number.isdecimal())


class Fifo:
    """The reading end of one FIFO, open, locked, and read by a thread, so that its writer waits for a full buffer only.

    Bytes are waited for `timeout_s` seconds at most, and `buffer_bytes` of them may wait in memory.
    Raises PlanError or MissingDataError.
    """

    def __init__(self, name: PassName, timeout_s: float, buffer_bytes: int) -> None:
        self.name, self._timeout_s, self._stop = name, timeout_s, StopEvent()
        self._bytes = 0
        try:
            self._open()
        except OSError as error:
            raise _unreadable(name, error) from error
        self._poll = select.poll()
        self._poll.register(self._file.fileno(), select.POLLIN)
        self._poll.register(self._stop.fileno(), select.POLLIN)
        # The thread keeps the deadline; the consumer stops trusting the thread some seconds later.
        self._chunks = OrderedPrefetch(
            self._read_chunk,
            0,
            sys.maxsize,
            depth=buffer_bytes,
            threads=1,
            timeout_s=timeout_s + _GRACE_S,
            name=str(name.path),
            weigh=lambda chunk: len(chunk) if chunk else buffer_bytes,  # nothing comes after the end
        )
        self._chunks.start()

    def take(self) -> bytes | None:
        """The next bytes; None at the end. Raises LoaderTimeoutError, MissingDataError; PlanError once it is closed."""
        return self._chunks.take()

    def close(self) -> None:
        """End the thread and close, at any point: a writer then gets EPIPE, which is legal. May be called twice."""
        self._chunks.cancel()
        self._stop.set()
        self._chunks.close()
        if not self._chunks.is_busy:  # else the thread might read another file of the same number
            self._file.close()

    def _open(self) -> None:
        # Without O_NONBLOCK open() itself would wait for a writer, for ever.
        self._file = OwnedDescriptor(self.name.path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            _require_fifo(self.name, os.fstat(self._file.fileno()))
            lock_at_once(self._file, self.name.channel)
            try:
                fcntl.fcntl(self._file.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            except OSError as error:
                # The user's share of pipe memory is used up, or the system's limit is lower: slower, and as correct.
                if error.errno not in (errno.EPERM, errno.EBUSY):
                    raise
        except BaseException:
            self._file.close()
            raise

    def _read_chunk(self, number: int) -> bytes | None:  # noqa: ARG002
        """The next bytes, as many as are there (at most `PIPE_BYTES`); None at the end, or once stopped.

        A FIFO reads as empty before a writer comes, too. Linux reports POLLHUP only after a writer was there and has
        gone, so the end is POLLHUP together with an empty read.
        """
        end = time.monotonic() + self._timeout_s
        while True:
            events = dict(self._poll.poll(max(0.0, end - time.monotonic()) * 1000))
            if self._stop.fileno() in events:
                return None
            try:
                chunk = os.read(self._file.fileno(), PIPE_BYTES)  # b"": nobody writes
            except BlockingIOError:
                chunk = None  # a writer is there and has written nothing
            except OSError as error:
                raise _unreadable(self.name, error) from error
            if chunk:
                self._bytes += len(chunk)
                return chunk
            if chunk is not None and events.get(self._file.fileno(), 0) & select.POLLHUP:
                return None
            if time.monotonic() >= end:
                raise self._silent(has_writer=chunk is None)

    def _silent(self, has_writer: bool) -> LoaderTimeoutError:
        if has_writer or self._bytes:
            fact = f"{self.name.path} ({self.name}) was silent for {self._timeout_s:g} s after {self._bytes:,} bytes."
            conflict = "Its writer is still there and writes nothing."
            return LoaderTimeoutError(fact, conflict, "look at the agent that feeds the pipe, or allow more time.")
        return LoaderTimeoutError(
            f"Nobody opened {self.name.path} ({self.name}) for writing within {self._timeout_s:g} s.",
            "The FIFO exists, but no agent feeds it: 0 bytes came.",
            "start the agent, remove a FIFO that an earlier job left, or allow more time.",
        )


def _unreadable(name: PassName, error: OSError) -> MissingDataError:
    fact = f"{name.path} ({name}) cannot be read: {error.strerror}."
    conflict = "This worker's records come through it."
    return MissingDataError(fact, conflict, "let this user read it, or check --data.pipe-dir.")


def _passed_by(name: PassName, later: list[int]) -> PlanError:
    there = ", ".join(f"{name.channel}_{number}" for number in later)
    return PlanError(
        f"{name.path} ({name}) is not there, but {there} is.",
        "The FIFOs of a channel come once each, in sequence, and a job begins with the first, also when it resumes.",
        "restart the agent so that it begins with epoch 0, and remove what one left that is gone.",
    )


def _never_appeared(name: PassName, timeout_s: float) -> LoaderTimeoutError:
    channels = sorted({path.name.rpartition("_")[0] for path in name.base.glob("*_*") if path.is_fifo()})
    return LoaderTimeoutError(
        f"{name.path} ({name}) did not appear within {timeout_s:g} s.",
        f"FIFOs there are of channels {', '.join(channels)}." if channels else "There is no FIFO at all in its folder.",
        "check the channel's name and whether the agent delivers that many epochs, or allow more time.",
    )


def _require_fifo(name: PassName, status: os.stat_result) -> None:
    if not stat.S_ISFIFO(status.st_mode):
        fact = f"{name.path} ({name}) is not a FIFO."
        conflict = "Pipe mode reads what an agent writes into FIFOs."
        raise PlanError(fact, conflict, "use --data.mode file for files, or check --data.pipe-dir.")
