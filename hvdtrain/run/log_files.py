"""The files in logs/ of a run folder: one of each rank; or, of many ranks, one of each host.

Records of a host's ranks gather on its local disk, and one rank appends all of them to the file in the run folder,
which a shared file system holds: whoever writes the heartbeats of the host does that too. A warning, an error and the
end of a process are written at once. Of a rank that is killed nothing is lost: its records are with the others'.
"""

import errno
import fcntl
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from hvdtrain.history.rank_logs import LogFormatter
from hvdtrain.run.watch.local_folder import LocalFolder

_LOCK_SECONDS: Final = 0.2
"""A rank holds the lock for microseconds, unless it is frozen just then: the others do without it."""


def rank_log(folder: Path, rank: int) -> logging.Handler:
    """Appends to rank_N.log. Raises OSError: it cannot be written."""
    handler = _LogFile(folder / f"rank_{rank}.log")
    handler.setFormatter(LogFormatter())
    return handler


def host_log(folder: Path, rank: int, host: str, local: LocalFolder) -> logging.Handler:
    """Appends to host_NAME.log, which is written when the handler is flushed. Raises OSError: it cannot be.

    Args:
        host: the name of the node, the same for all its ranks.
        local: where their records gather. Where that cannot be, each record is written at once.
    """
    handler = _HostLogFile(folder / _host_file(host), local)
    handler.setFormatter(LogFormatter(rank))
    return handler


class _LogFile(logging.FileHandler):
    """Training continues without its log if the disk is full; logging by itself would print a traceback per line."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802  overrides
        self._give_up()

    def _give_up(self) -> None:
        logging.getLogger("hvdtrain").removeHandler(self)
        print(f"{self.baseFilename} cannot be written any more: {sys.exc_info()[1]}", file=sys.stderr, flush=True)


class _HostLogFile(_LogFile):
    """Several processes of a machine append to it: each writes whole records at once, so that none is inside another.

    The lock is of a kind that a forked process does not inherit.
    """

    def __init__(self, path: Path, local: LocalFolder) -> None:
        super().__init__(path)
        self._local = local
        self._has_ended = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._keep(f"{self.format(record)}\n".encode(errors="backslashreplace"))
            if record.levelno >= logging.WARNING:
                self._write(self._take())
        except Exception:  # as logging's own handlers do
            self._end_by_error()

    def flush(self) -> None:
        """Write what has gathered."""
        self._pass_on(is_last=False)

    def close(self) -> None:
        """Write what has gathered, and remove the local file, which others make anew if they still log."""
        self._pass_on(is_last=True)
        self._has_ended = True
        super().close()

    def _pass_on(self, is_last: bool) -> None:
        """The lock is not held while the run folder's file system may be slow: training goes on."""
        with self.lock:  # type: ignore[union-attr]
            gathered = b"" if self._has_ended else self._take(is_last)
        try:
            self._write(gathered)
        except OSError:
            self._end_by_error()

    def _end_by_error(self) -> None:
        self._has_ended = True
        self._give_up()

    def _keep(self, text: bytes) -> None:
        try:
            with self._gathered() as file:
                before = os.fstat(file).st_size
                if os.write(file, text) < len(text):
                    os.ftruncate(file, before)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self._write(text)

    def _take(self, is_last: bool = False) -> bytes:
        try:
            with self._gathered() as file:
                text = os.pread(file, os.fstat(file).st_size, 0)
                os.ftruncate(file, 0)
                if is_last:
                    self._local.log.unlink()
        except OSError:
            return b""  # nothing is there, or its holder writes it
        return text

    def _write(self, text: bytes) -> None:
        if text and os.write((self.stream or self._open()).fileno(), text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextmanager
    def _gathered(self) -> Iterator[int]:
        """The local file. Raises OSError: it cannot be used, or a rank that is frozen holds it."""
        self._local.make_private()
        until = time.monotonic() + _LOCK_SECONDS
        while True:
            file = os.open(self._local.log, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            try:
                _lock(file, until)
                if os.fstat(file).st_nlink:  # else a rank that has ended has just removed it
                    yield file
                    return
            finally:
                os.close(file)


def _lock(file: int, until: float) -> None:
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.0005)


def _host_file(host: str) -> str:
    """Two machines may have one name, and must not append to one file of a shared file system: hence Linux's number of
    the machine's start."""
    machine = ""
    with suppress(OSError):
        machine = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    return f"host_{re.sub(r'[^A-Za-z0-9_.-]', '-', host)[:100]}-{machine}.log"
