"""The files in logs/ of a run folder: one of each rank; or, of many ranks, one of each host.

During training, records of a host's ranks gather on its local disk, and one rank appends all of them to the file in the
run folder, which a shared file system holds: whoever writes the heartbeats of the host does that too. A warning, an
error and the end of a process are written at once. Of a rank that is killed nothing is lost: its records are with the
others'. Those of one rank are in their order.
"""

import errno
import fcntl
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

from hvdtrain.history.rank_logs import LogFormatter
from hvdtrain.run.watch.local_folder import LocalFolder

_LOCK_SECONDS: Final = 0.2
"""A rank holds the lock for microseconds, unless it is frozen just then: the others do without it."""
_DIRECT_SECONDS: Final = 10.0
"""For so long a rank does not try the local disk again after it could not be used."""


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

    While it holds back, records go to `LocalFolder.log`. Who writes them takes that file by renaming it, and removes it
    when they are in the run folder. What a process has taken that has ended meanwhile, another one writes. The lock is
    of a kind that a forked process does not inherit.
    """

    def __init__(self, path: Path, local: LocalFolder) -> None:
        super().__init__(path)
        self.holds_back = False
        self._local = local
        self._writing = threading.Lock()
        self._direct_until = 0.0
        self._has_complained = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = f"{self.format(record)}\n".encode(errors="backslashreplace")
            if self.holds_back and record.levelno < logging.WARNING and self._keep(text):
                return
            self._write(text)
        except Exception:  # as logging's own handlers do
            self.handleError(record)

    def flush(self) -> None:
        """Write what has gathered, of all ranks of the host."""
        self._write(b"")

    def close(self) -> None:
        self.holds_back = False
        super().close()

    def _write(self, text: bytes) -> None:
        """What has gathered, and then `text`. Where another thread is writing, or the run folder cannot be written, all
        of it waits on the local disk."""
        if not self._writing.acquire(timeout=_LOCK_SECONDS):
            self._keep(text)
            return
        try:
            self._write_gathered()
            self._append(text)
        except OSError as error:
            self._complain(error)
            self._keep(text)
        finally:
            self._writing.release()

    def _write_gathered(self) -> None:
        log = self._local.log
        own = log.with_suffix(f".{os.getpid()}.log")
        for left in (log, *filter(_is_left, log.parent.glob(f"{log.stem}.*.log"))):
            if (text := self._taken(left, own)) is not None:
                self._append(text)
                own.unlink()

    def _taken(self, left: Path, own: Path) -> bytes | None:
        """The content of `left`, which becomes `own`; or of `own`, if that could not be written before. None: nothing
        is there, or another rank has taken it."""
        try:
            if not own.exists():
                with self._locked(os.O_RDWR) if left == self._local.log else nullcontext():
                    left.rename(own)
            return own.read_bytes()
        except OSError:
            return None

    def _append(self, text: bytes) -> None:
        if text and os.write((self.stream or self._open()).fileno(), text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _keep(self, text: bytes) -> bool:
        """On the local disk; returns whether it can be kept there."""
        if not text or time.monotonic() < self._direct_until:
            return False
        try:
            self._local.make_private()
            with self._locked(os.O_RDWR | os.O_CREAT) as file:
                before = os.fstat(file).st_size
                if os.write(file, text) < len(text):
                    os.ftruncate(file, before)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self._direct_until = time.monotonic() + _DIRECT_SECONDS
            return False
        return True

    @contextmanager
    def _locked(self, flags: int) -> Iterator[int]:
        """The local file. Raises OSError: it is not there, cannot be used, or a rank that is frozen holds it."""
        until = time.monotonic() + _LOCK_SECONDS
        while True:
            file = os.open(self._local.log, flags | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            try:
                _lock(file, until)
                if _is_at(self._local.log, file):  # else another rank has just taken it
                    yield file
                    return
            finally:
                os.close(file)

    def _complain(self, error: OSError) -> None:
        if not self._has_complained:
            text = f"{self.baseFilename} cannot be written now, and its records wait in {self._local.private}: {error}"
            print(text, file=sys.stderr, flush=True)
        self._has_complained = True


def _lock(file: int, until: float) -> None:
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except (BlockingIOError, PermissionError):
            if time.monotonic() > until:
                raise
            time.sleep(0.0005)


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False


def _is_left(taken: Path) -> bool:
    """Whether the process that has taken these records has ended."""
    try:
        os.kill(int(taken.suffixes[-2][1:]), 0)
    except (ProcessLookupError, ValueError):
        return True
    except PermissionError:
        return False
    return False


def _host_file(host: str) -> str:
    """Two machines may have one name, and must not append to one file of a shared file system: hence Linux's number of
    the machine's start."""
    machine = ""
    with suppress(OSError):
        machine = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    return f"host_{re.sub(r'[^A-Za-z0-9_.-]', '-', host)[:100]}-{machine}.log"
