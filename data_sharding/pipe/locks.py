"""Who may read a channel: one process, and never a forked child of it.

Before anything is opened, `check_openers` compares what all ranks are about to open. Then a lock, flock(2) on a file
`.<channel>.lock` beside the FIFOs, is taken without waiting and held for life. It belongs to the open file: a second
opener is refused in another process and in the same one alike (fcntl's record locks would let the same process in), and
the kernel frees it when its holder dies. The file stays: removing it would let two processes lock two files of one
name. A forked child would share lock and FIFO, so that the writer never saw EPIPE after the parent had died. So a child
closes its copies at once, and every method of an inherited reader is refused there.
"""

import errno
import fcntl
import multiprocessing
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_sharding.errors import MissingDataError, PlanError

_held: set[int] = set()
"""Descriptors of this process that no child may inherit."""


class OwnedDescriptor:
    """A file descriptor that belongs to the process that opened it; a forked child's copy is closed in the child."""

    def __init__(self, path: str | Path, flags: int) -> None:
        self._process = os.getpid()
        self._number = os.open(path, flags | os.O_CLOEXEC, 0o666)
        _held.add(self._number)

    def fileno(self) -> int:
        return self._number

    def close(self) -> None:
        """May be called twice. Does nothing in a forked child, where the number may be that of another file by now."""
        if self._process == os.getpid() and self._number in _held:
            _held.discard(self._number)
            os.close(self._number)
            self._number = -1


def _close_all() -> None:
    for number in tuple(_held):
        os.close(number)
    _held.clear()


os.register_at_fork(after_in_child=_close_all)


class StopEvent(threading.Event):
    """A `threading.Event` that poll(2) can wait for: its descriptor is readable once it is set."""

    def __init__(self) -> None:
        super().__init__()
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._descriptor

    def set(self) -> None:
        """End all waits, now and later."""
        super().set()
        os.eventfd_write(self._descriptor, 1)

    def __del__(self) -> None:
        os.close(self._descriptor)


class ChannelLock:
    """The right to read one channel, for the life of this object; `who` is how a second opener's error names it.

    Where the folder `base` cannot be written, the lock on each FIFO itself, taken when it is opened, is all there is.
    Raises MissingDataError or PlanError.
    """

    def __init__(self, base: Path, channel: str, who: str) -> None:
        # Workers of a torch DataLoader and of a multiprocessing.Pool are daemons; launchers' workers are not.
        if (process := multiprocessing.current_process()).daemon:
            fact = f"Channel {channel} was asked for in {process.name}, a data-loading subprocess."
            conflict = "Each such subprocess would open the same FIFO."
            raise PlanError(fact, conflict, "read the channel in the worker itself, e.g. with num_workers=0.")
        if not os.path.isdir(base):
            raise MissingDataError(
                f"There is no folder {base}.", f"The FIFOs of channel {channel} are to appear in it.", "check the path."
            )
        self._file: OwnedDescriptor | None = None
        path = base / f".{channel}.lock"
        try:
            self._file = OwnedDescriptor(path, os.O_RDWR | os.O_CREAT)
            lock_at_once(self._file, channel, path)
            os.ftruncate(self._file.fileno(), 0)
            os.write(self._file.fileno(), f"{who} (process {os.getpid()})\n".encode())
        except OSError as error:
            if self._file is None and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                return  # this user may not write there
            self.release()
            raise MissingDataError(
                f"{path} cannot be locked: {error.strerror}.",
                "Without that a second reader of the channel would go unnoticed.",
                "let the FIFOs appear in a folder of a local disk that is not full.",
            ) from error

    def release(self) -> None:
        """Let others in. May be called twice."""
        if self._file is not None:
            self._file.close()


def lock_at_once(file: OwnedDescriptor, channel: str, holder: Path | None = None) -> None:
    """Lock without waiting; `holder` is a file that says who else may have the lock. Raises PlanError if one has."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        name = holder.read_text(errors="replace").strip() if holder is not None else ""
        raise PlanError(
            f"Channel {channel} is already being read by {name or 'another process'}.",
            "Two readers of one FIFO would each get torn records.",
            "wait for the end of the job that reads it; within one job each worker of a node needs its own channel.",
        ) from None


@dataclass(frozen=True)
class FifoOpener:
    """A rank of the job, and the FIFO of a channel that it is about to open; `host` is for messages.

    `machine` tells kernels apart, such as the boot id. On one machine, device and inode tell FIFOs apart.
    """

    rank: int
    host: str
    local_rank: int
    channel: str
    machine: str
    device: int
    inode: int

    def __str__(self) -> str:
        return f"rank {self.rank} (local rank {self.local_rank} on {self.host}, channel {self.channel})"


def check_openers(openers: Sequence[FifoOpener]) -> None:
    """Raise PlanError if one FIFO would get two readers. All ranks pass all ranks' openers, so all raise or none."""
    seen: dict[tuple[str, int, int], FifoOpener] = {}
    for opener in openers:
        first = seen.setdefault((opener.machine, opener.device, opener.inode), opener)
        if first is not opener:
            raise PlanError(
                f"One FIFO would be opened by {first} and by {opener}.",
                "Each would get some of its bytes, and torn records, or wait for ever.",
                "give each worker of a node a channel of its own, as `hvdtrain shard pipe-plan` does.",
            )
