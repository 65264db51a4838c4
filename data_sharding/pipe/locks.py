"""Who may read a channel: one process, and never a forked child of it.

The lock is flock(2) on a file `.<channel>.lock` beside the FIFOs, taken without waiting and held for life. It belongs
to the open file: a second opener is refused in another process and in the same one alike (fcntl's record locks would
let the same process in, and would be lost when any of its descriptors of the file is closed), and the kernel frees it
when its holder dies, however that happens. The file stays: removing it would let two processes lock two files of one
name. A fork would share the open file, so that a child could keep the lock, and the FIFO's read end, after its parent
died or closed early: then the writer would never see EPIPE. So a child closes its copies at once, and every method of
an inherited reader is refused there.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import multiprocessing
import os
from pathlib import Path

from data_sharding.errors import MissingDataError, PlanError

_held: set[int] = set()
"""Descriptors of this process that no child may inherit."""


class OwnedDescriptor:
    """A file descriptor that belongs to the process that opened it; a forked child's copy is closed in the child."""

    def __init__(self, path: str | Path, flags: int) -> None:
        _forget_in_children()
        self._process = os.getpid()
        self._number = os.open(path, flags | os.O_CLOEXEC, 0o666)
        _held.add(self._number)

    def fileno(self) -> int:
        """Its number."""
        return self._number

    def close(self) -> None:
        """May be called twice. Does nothing in a forked child, where the number may stand for something else by now."""
        if self._process == os.getpid() and self._number in _held:
            _held.discard(self._number)
            os.close(self._number)
            self._number = -1


@functools.cache
def _forget_in_children() -> None:
    os.register_at_fork(after_in_child=_close_all)


def _close_all() -> None:
    for number in tuple(_held):
        os.close(number)
    _held.clear()


class ChannelLock:
    """The right to read one channel, for the life of this object.

    Where the folder cannot be written there is no lock file; then the lock on each FIFO itself, which is taken when it
    is opened, is all there is.

    Args:
        base: folder of the FIFOs.
        channel: name of the channel.
        who: the holder, as the error of a second opener names it.

    Raises:
        MissingDataError: no such folder, or one in which nothing can be locked.
        PlanError: another opener holds the channel, or this is a data-loading subprocess.
    """

    def __init__(self, base: Path, channel: str, who: str) -> None:
        _refuse_helpers(channel)
        if not os.path.isdir(base):
            raise MissingDataError(
                f"There is no folder {base}.", f"The FIFOs of channel {channel} are to appear in it.", "check the path."
            )
        self._file: OwnedDescriptor | None = None
        path = base / f".{channel}.lock"
        try:
            self._file = _open_to_write(path)
            if self._file is not None:
                self._hold(self._file, path, channel, who)
        except OSError as error:
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

    def _hold(self, file: OwnedDescriptor, path: Path, channel: str, who: str) -> None:
        if not lock_at_once(file):
            file.close()
            raise busy(channel, path.read_text(errors="replace").strip() or "another process")
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), f"{who} (process {os.getpid()})\n".encode())


def _open_to_write(path: Path) -> OwnedDescriptor | None:
    """None where this user may not write."""
    try:
        return OwnedDescriptor(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return None
        raise


def lock_at_once(file: OwnedDescriptor) -> bool:
    """Lock without waiting; whether nobody else holds it."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def busy(channel: str, holder: str) -> PlanError:
    """The error of a second opener."""
    return PlanError(
        f"Channel {channel} is already being read by {holder}.",
        "Two readers of one FIFO would each get torn records.",
        "wait for the end of the job that reads it; within one job each worker of a node needs its own channel.",
    )


def refuse_other_process(owner: int, channel: str) -> None:
    """Raise `PlanError` unless this is process `owner`."""
    if os.getpid() != owner:
        raise PlanError(
            f"Channel {channel} was opened by process {owner} and is used in process {os.getpid()}, forked from it.",
            "Two readers of one FIFO would each get torn records.",
            "read the channel in the worker itself; it is drained in a background thread anyway.",
        )


def _refuse_helpers(channel: str) -> None:
    """Workers of a torch DataLoader and of a multiprocessing.Pool are daemons; launchers' workers are not."""
    if multiprocessing.current_process().daemon:
        raise PlanError(
            f"Channel {channel} was asked for in {multiprocessing.current_process().name}, a data-loading subprocess.",
            "Each such subprocess would open the same FIFO.",
            "read the channel in the worker itself, e.g. with num_workers=0.",
        )
