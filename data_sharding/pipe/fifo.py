"""One FIFO, opened and read without ever blocking for longer than its deadline."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from data_sharding.errors import LoaderTimeoutError, MissingDataError, PlanError
from data_sharding.pipe.locks import OwnedDescriptor, busy, lock_at_once

PIPE_BYTES: Final = 2**20
"""Asked of the kernel for each FIFO, and read at a time: the most an unprivileged process may have (fcntl(2),
/proc/sys/fs/pipe-max-size). Linux gives 64 KiB by itself, and switching threads for so little costs throughput."""

_APPEARANCE_POLL_S: Final = 0.01
_LATER_GRACE_S: Final = 2.0
"""What an agent may take between a later FIFO and an earlier one, should it make them out of order."""


@dataclass(frozen=True)
class PassName:
    """Which FIFO this is, as errors name it."""

    rank: int
    channel: str
    epoch: int
    path: Path

    def __str__(self) -> str:
        return f"channel {self.channel}, epoch {self.epoch}, of rank {self.rank}"


class Stop:
    """A switch that ends waiting threads at once: an Event that poll(2) can wait for."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """Readable once set."""
        return self._descriptor

    def set(self) -> None:
        """End all waits, now and later."""
        if not self._event.is_set():
            self._event.set()
            os.eventfd_write(self._descriptor, 1)

    def wait(self, seconds: float) -> bool:
        """Whether it was set within so many seconds."""
        return self._event.wait(seconds)

    def __del__(self) -> None:
        os.close(self._descriptor)


def await_fifo(name: PassName, timeout_s: float) -> os.stat_result:
    """The FIFO's status once it exists.

    Raises:
        LoaderTimeoutError: it did not appear within `timeout_s` seconds.
        PlanError: there is something else of that name, or the channel's agent is at a later epoch.
        MissingDataError: this user may not look at it.
    """
    begin = passed_since = time.monotonic()
    while (status := _status(name)) is None:
        now = time.monotonic()
        later = [number for number in numbers_of(name.path.parent, name.channel) if number > name.epoch]
        if not later:
            passed_since = now
        elif now - passed_since >= min(_LATER_GRACE_S, timeout_s):
            raise _passed_by(name, later)
        if now - begin >= timeout_s:
            raise _never_appeared(name, timeout_s)
        time.sleep(_APPEARANCE_POLL_S)
    _require_fifo(name, status)
    return status


def numbers_of(base: Path, channel: str) -> list[int]:
    """Sorted numbers of the entries `<channel>_<number>` of a folder; none if there is no such folder."""
    try:
        names = os.listdir(base)
    except OSError:
        return []
    numbers = [name.removeprefix(f"{channel}_") for name in names if name.startswith(f"{channel}_")]
    return sorted(int(number) for number in numbers if number.isdecimal())


class FifoPass:
    """The reading end of one FIFO, open and locked.

    Raises:
        PlanError: it is no FIFO, or another process reads it.
        MissingDataError: it cannot be opened.
    """

    def __init__(self, name: PassName, timeout_s: float, stop: Stop) -> None:
        self._name, self._timeout_s, self._stop = name, timeout_s, stop
        self._bytes = 0
        try:
            self._open()
        except OSError as error:
            raise _unreadable(name, error) from error
        self._poll = select.poll()
        self._poll.register(self._file.fileno(), select.POLLIN)
        self._poll.register(stop.fileno(), select.POLLIN)

    def _open(self) -> None:
        # Without O_NONBLOCK open() itself would wait for a writer, for ever.
        self._file = OwnedDescriptor(self._name.path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            _require_fifo(self._name, os.fstat(self._file.fileno()))
            if not lock_at_once(self._file):
                raise busy(self._name.channel, "another process")
            self._enlarge()
        except BaseException:
            self._file.close()
            raise

    def read_chunk(self) -> bytes | None:
        """The next bytes, as many as are there (at most `PIPE_BYTES`); None at the end, or once stopped.

        An empty read alone is no end: before a writer comes a FIFO reads as empty, too. Linux reports POLLHUP only
        after a writer was there and has gone, so the end is POLLHUP together with an empty read.

        Raises:
            LoaderTimeoutError: nothing came for `timeout_s` seconds.
            MissingDataError: it cannot be read.
        """
        end = time.monotonic() + self._timeout_s
        while True:
            events = dict(self._poll.poll(max(0.0, end - time.monotonic()) * 1000))
            if self._stop.fileno() in events:
                return None
            chunk = self._read()
            if chunk:
                self._bytes += len(chunk)
                return chunk
            if chunk is not None and events.get(self._file.fileno(), 0) & select.POLLHUP:
                return None
            if time.monotonic() >= end:
                raise self._silent(has_writer=chunk is None)

    def close(self) -> None:
        """Close, at any point: a writer then gets EPIPE, which is legal. May be called twice."""
        self._file.close()

    def _read(self) -> bytes | None:
        """b"": nobody writes; None: a writer is there and has written nothing."""
        try:
            return os.read(self._file.fileno(), PIPE_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            raise _unreadable(self._name, error) from error

    def _enlarge(self) -> None:
        try:
            fcntl.fcntl(self._file.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError as error:
            # The user's share of pipe memory is used up, or the system's limit is lower: slower, and as correct.
            if error.errno not in (errno.EPERM, errno.EBUSY):
                raise

    def _silent(self, has_writer: bool) -> LoaderTimeoutError:
        if has_writer or self._bytes:
            return LoaderTimeoutError(
                f"{self._name.path} ({self._name}) was silent for {self._timeout_s:g} s after {self._bytes:,} bytes.",
                "Its writer is still there and writes nothing.",
                "look at the agent that feeds the pipe, or allow more time.",
            )
        return LoaderTimeoutError(
            f"Nobody opened {self._name.path} ({self._name}) for writing within {self._timeout_s:g} s.",
            "The FIFO exists, but no agent feeds it: 0 bytes came.",
            "start the agent, remove a FIFO that an earlier job left, or allow more time.",
        )


def _status(name: PassName) -> os.stat_result | None:
    try:
        return os.stat(name.path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(name, error) from error


def _unreadable(name: PassName, error: OSError) -> MissingDataError:
    return MissingDataError(
        f"{name.path} ({name}) cannot be read: {error.strerror}.",
        "This worker's records come through it.",
        "let this user read it, or check --data.pipe-dir.",
    )


def _passed_by(name: PassName, later: list[int]) -> PlanError:
    there = ", ".join(f"{name.channel}_{number}" for number in later)
    return PlanError(
        f"{name.path} ({name}) is not there, but {there} is.",
        "The FIFOs of a channel come once each, in sequence, and a job begins with the first, also when it resumes.",
        "restart the agent so that it begins with epoch 0, and remove what one left that is gone.",
    )


def _never_appeared(name: PassName, timeout_s: float) -> LoaderTimeoutError:
    channels = sorted({path.name.rpartition("_")[0] for path in name.path.parent.glob("*_*") if path.is_fifo()})
    return LoaderTimeoutError(
        f"{name.path} ({name}) did not appear within {timeout_s:g} s.",
        f"FIFOs there are of channels {', '.join(channels)}." if channels else "There is no FIFO at all in its folder.",
        "check the channel's name and whether the agent delivers that many epochs, or allow more time.",
    )


def _require_fifo(name: PassName, status: os.stat_result) -> None:
    if not stat.S_ISFIFO(status.st_mode):
        raise PlanError(
            f"{name.path} ({name}) is not a FIFO.",
            "Pipe mode reads what an agent writes into FIFOs.",
            "use --data.mode file for files, or check --data.pipe-dir.",
        )
