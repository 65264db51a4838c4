"""What a failing rank leaves for its launcher: JSON in a file that the launcher names in HVDTRAIN_FAILURE_FILE.

The launcher decides from these records which rank caused the end of a job. A rank that leaves none was killed, or
crashed below Python.
"""

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal

FILE_VARIABLE = "HVDTRAIN_FAILURE_FILE"
RAISED_VARIABLE = "HVDTRAIN_FAILURE_IS_RAISED"
"""A variable of the launcher and its workers, "1" where whoever has started the launcher raises the cause of its end.
Then no process of the job prints that, too."""
STALL: Final = "Training has not gone on for"  # how the cause of a rank begins that its watchdog has ended
_WELL: Final = (0, 75)  # 75 is RESUMABLE of hvdtrain.errors
EARLY_END: Final = "ended without an error before it was done, as os._exit(0) does"
Kind = Literal["exception", "error", "wrong_worker", "signal", "lost_rank", "stall", "unfinished", "done"]
"""An exception that hvdtrain did not raise, an error that it did, a `WrongWorkerError`, a signal that ended this rank
before it had saved, another rank that has ended, one that has stalled. And of `must_return`: the work of the rank has
begun, so that a process which ends with exit code 0 was ended by os._exit(0), or by exit() of a library; it is done,
so that a signal which ends the process, or a crash in a library's clean-up, takes nothing with it."""


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """Why one rank failed; `detail` is what its launcher should print, where the rank has printed a single line, or
    nothing because the cause is raised; `process` is the number of the process that has left it."""

    kind: Kind
    rank: int
    host: str
    cause: str
    exit_code: int
    detail: str = ""
    process: int = 0

    @property
    def is_consequence(self) -> bool:
        """Whether this rank failed only because another one did."""
        return self.kind in ("lost_rank", "stall")


class FailureFile:
    """Where a worker leaves its record: memory of the launcher, opened by its path in /proc, so that nothing stays."""

    def __init__(self) -> None:
        self._file: int | None = os.memfd_create("hvdtrain-failure")
        state = os.fstat(self._file)
        self.place = f"{state.st_dev}:{state.st_ino}:/proc/{os.getpid()}/fd/{self._file}"
        """The value of HVDTRAIN_FAILURE_FILE for the worker."""

    def read(self) -> FailureRecord | None:
        """The last record, or None if the worker has left none. Of a record that is not whole, the one before."""
        if self._file is None:
            return None
        for line in reversed(os.pread(self._file, os.fstat(self._file).st_size, 0).splitlines()):
            with suppress(ValueError, TypeError):
                return FailureRecord(**json.loads(line))
        return None

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


_claimed: Final[dict[int, str]] = {}  # process → its place; a forked child has another number


def claim_failure_file() -> None:
    """From now on only this process writes into its file: a command that it starts is not what the launcher started.
    For the start of a worker, before it starts other processes."""
    place = os.environ.pop(FILE_VARIABLE, None)
    if place is not None:
        _claimed[os.getpid()] = place


@dataclass
class Done:
    """The exit code of the work of a rank, once that is done."""

    code: int = 0


@contextmanager
def must_return(rank: int) -> Iterator[Done]:
    """The work of a rank. If its process ends in it with exit code 0 or 75, its launcher counts that as a failure; if a
    signal ends it later, as the end of work that was done."""
    cause = f"Rank {rank} on {socket.gethostname()} {EARLY_END}"
    write_failure("unfinished", rank, cause, 1)
    done = Done()
    yield done
    write_failure("done", rank, "", done.code)


def end_of(code: int, record: FailureRecord | None, process: int) -> tuple[int, FailureRecord | None]:
    """Exit code and record of the worker `process`, which has ended with `code`, and whose last record is `record`. It
    may be a script that has started another program, which has left the record."""
    if record is None or record.kind not in ("unfinished", "done"):
        return code, record
    if record.kind == "unfinished" and code in _WELL and record.process == process:
        return record.exit_code, record
    if record.kind == "done" and code < 0 and record.process == process:
        return record.exit_code, replace(record, cause=f"was killed by {signal_name(-code)} after its work was done")
    return code, None


def signal_name(number: int) -> str:
    """For people: "SIGKILL", "signal 62"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def is_raised() -> bool:
    """Whether whoever has started this job raises the cause of its end; see RAISED_VARIABLE."""
    return os.environ.get(RAISED_VARIABLE) == "1"


def write_failure(kind: Kind, rank: int, cause: str, exit_code: int, detail: str = "") -> bool:
    """Leave a record for the launcher; returns False if it asks for none. A later record replaces an earlier one."""
    return pass_on_failure(FailureRecord(kind, rank, socket.gethostname(), cause, exit_code, detail, os.getpid()))


def left_to_raise(kind: Kind, rank: int, cause: str, exit_code: int, message: str) -> bool:
    """Leave a record with `message`, which then need not be printed, if the cause is raised; returns whether it is."""
    return is_raised() and write_failure(kind, rank, cause, exit_code, message)


def pass_on_failure(record: FailureRecord) -> bool:
    """Leave another process's record, as a launcher does for whoever has started it; returns as `write_failure`."""
    place = _claimed.get(os.getpid()) or os.environ.get(FILE_VARIABLE)
    if not place:
        return False
    try:
        _append(place, json.dumps(asdict(record)).encode() + b"\n")
    except (OSError, ValueError):
        return False  # a launcher that is gone must not hide the error itself
    return True


def _append(place: str, line: bytes) -> None:
    device, inode, path = place.split(":", 2)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        state = os.fstat(file)
        if (state.st_dev, state.st_ino) != (int(device), int(inode)):
            raise FileNotFoundError(path)  # the launcher has died, and its number is another process's now
        os.write(file, line)
    finally:
        os.close(file)
