"""What a command does when it fails: message, record for the launcher, log, exit code; in a job it ends at once.

An exception that is not an hvdtrain error is reported by the frames of the user's code, once for all ranks.
"""

import errno
import logging
import os
import re
import select
import signal
import socket
import stat
import sys
import sysconfig
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException

from hvdtrain.errors import HvdtrainError, PeerError, UsageError
from hvdtrain.failure_record import Kind, left_to_raise, write_failure
from hvdtrain.log_flush import close_logs_before_exit
from hvdtrain.topology import Topology, detect_topology

OTHER_LAUNCHERS_SECONDS = 4.0
"""The time in which a launcher that is not ours ends the other ranks, after rank 0 has failed and printed the cause."""

_OURS = tuple(str(Path(__file__).parents[2] / package) + os.sep for package in ("hvdtrain", "data_sharding"))
_LIBRARY = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_GENERATED = ("<frozen", "__autograph_generated_file")  # the interpreter's own; TensorFlow's copies of the user's code
_TOLD_BY_TENSORFLOW = "in user code:"  # how it begins the text of an exception in a graph; the user's frames follow
_SHORT_CHARACTERS = 300
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # what writing to a file raises, whatever its name is
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # Keras' messages have them wherever they are printed
_KERAS_ARGUMENTS = re.compile(r"\n\nArguments received by [^\n]*(?:\n  • [^\n]*)*")  # they push the cause out of sight


class _UnwritableOutputError(HvdtrainError):
    """A full disk, say."""

    exit_code = 1


def leave_after(error: BaseException, in_full: bool) -> int:
    """Say why the command failed and return its exit code; in a job of many ranks, leave the process instead.

    `in_full`: with the whole traceback. Called while the error is handled.
    """
    if isinstance(error, KeyboardInterrupt):
        _leave_record("signal", "interrupted by SIGINT", 130)
        return _leave(130, "interrupted")
    if isinstance(error, BrokenPipeError) and _is_output_closed():  # as in `hvdtrain env | head -3`
        return 128 + signal.SIGPIPE
    error = _about_output(error) or _about_rights(error) or error
    if isinstance(error, PeerError):
        return _end("lost_rank", error, error.exit_code, f"{who()} stopped: {error.fact} {error.conflict}")
    if not isinstance(error, HvdtrainError) and not _is_about_data(error):
        return _fail(error, in_full)
    if in_full:
        traceback.print_exc()
    code, kind = (error.exit_code, error.failure_kind) if isinstance(error, HvdtrainError) else (1, "error")
    return _end(kind, error, code, f"{who()}: {error}")


def _about_output(error: BaseException) -> HvdtrainError | None:
    """What is wrong with standard output, where that is what `error` is about."""
    full = isinstance(error, OSError) and error.errno in _FULL and error.filename is None
    if not full or not (reason := _flush_output() or _why_full()):
        return None
    return _UnwritableOutputError(
        f"Standard output cannot be written: {reason}.",
        "What this command prints is lost from there on.",
        "let it print to a file or a program that takes it.",
    )


def _about_rights(error: BaseException) -> HvdtrainError | None:
    """What this user may not read or write, where no code of the user's was about to."""
    if not isinstance(error, PermissionError) or error.filename is None or Failure(error).is_users:
        return None
    return UsageError(
        f"{error.filename} cannot be read or written: {error.strerror}.",
        "This user has no right to do so.",
        "change who may, or run this as somebody who may.",
    )


def _why_full() -> str:
    """Why standard output takes nothing more, or "". What it has taken stays as it is."""
    status = os.fstat(sys.stdout.fileno())
    if stat.S_ISREG(status.st_mode):
        return "" if os.fstatvfs(sys.stdout.fileno()).f_bavail else os.strerror(errno.ENOSPC)
    return _flush_output("\n") if stat.S_ISCHR(status.st_mode) and not sys.stdout.isatty() else ""


def _flush_output(more: str = "") -> str:
    """Write what was printed, and `more`; why that fails, or "". What could not be written is dropped: Python would
    report it at exit, with an exit code of its own."""
    try:
        print(more, end="", flush=True)
    except ValueError:  # the program itself has closed it
        return ""
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error.strerror or str(error)
    return ""


def _end(kind: Kind, error: BaseException, code: int, message: str) -> int:
    """Print the message, or leave it to whoever raises it."""
    if left_to_raise(kind, _rank(), str(error), code, message):
        return _leave(code, message, in_stream=False)
    _leave_record(kind, str(error), code)
    return _leave(code, message)


def who() -> str:
    """This process, in messages: "rank 1 on node7", or "hvdtrain" where it is alone."""
    topology = _topology()
    return f"rank {topology.rank} on {socket.gethostname()}" if topology and topology.is_distributed else "hvdtrain"


def _topology() -> Topology | None:
    try:
        return detect_topology(os.environ)
    except UsageError:
        return None


def _is_output_closed() -> bool:
    """Whether nobody reads what this process prints, and it is alone: in a job that is a failure like any other."""
    topology = _topology()
    if topology is not None and topology.is_distributed:
        return False
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in output.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python reports it at exit
    return True


def _is_about_data(error: BaseException) -> bool:
    """Whether it is a ShardingError. Only who has imported data_sharding raises one: launchers need not."""
    errors = sys.modules.get("data_sharding.errors")
    return errors is not None and isinstance(error, errors.ShardingError)


def _fail(error: BaseException, in_full: bool) -> int:
    """An exception of the user's code, or a defect of ours. Rank 0 prints its traceback, every other rank one line.

    The traceback of another rank is printed by `hvdtrain launch`, unless rank 0 has failed alike. Other launchers take
    no record, so the rank prints it itself, unless its launcher ends it first because rank 0 has failed too. Where the
    cause is raised, no rank prints any.
    """
    failure, topology = Failure(error), _topology()
    whole, shown = f"{who()} failed:\n{failure.full}", f"{who()} failed{failure.traceback(_log_file())}"
    if in_full:
        _leave_record("exception", failure.line(), 1)
        return _leave(1, whole)
    _note_in_log(whole)
    if left_to_raise("exception", _rank(), failure.line(), 1, shown):
        return _leave(1, shown, in_log=False, in_stream=False)
    if topology is None or topology.is_root:
        _leave_record("exception", failure.line(), 1)
        return _leave(1, shown, in_log=False)
    line = f"{who()} failed: {failure.line()}"
    if _leave_record("exception", failure.line(), 1, shown):
        return _leave(1, line, in_log=False)
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
    with suppress(KeyboardInterrupt):
        time.sleep(OTHER_LAUNCHERS_SECONDS)
    return _leave(1, shown, in_log=False)


def _leave_record(kind: Kind, cause: str, code: int, detail: str = "") -> bool:
    return write_failure(kind, _rank(), cause, code, detail)


def _rank() -> int:
    topology = _topology()
    return topology.rank if topology else 0


def _leave(code: int, message: str, in_log: bool = True, in_stream: bool = True) -> int:
    """Say why, and end this process so that the others notice.

    One write for the whole message: launchers mix ranks' outputs line by line. In a job, `os._exit`: an orderly exit
    would run Horovod's shutdown, which waits for ranks that are busy with something else.
    """
    topology = _topology()
    if code == UsageError.exit_code and topology is not None and not topology.is_root:
        message = message.replace("\n", " ")  # rank 0 most likely says the same; whoever is first ends the job
    _flush_output()
    if in_stream:
        sys.stderr.write(message.rstrip() + "\n")
    sys.stderr.flush()
    if in_log:
        _note_in_log(message)
    if topology is not None and topology.is_distributed:
        close_logs_before_exit()
        os._exit(code)
    return code


def _log_files() -> list[logging.FileHandler]:
    """What writes this rank's log file; empty before it has one."""
    return [handler for handler in logging.getLogger("hvdtrain").handlers if isinstance(handler, logging.FileHandler)]


def _log_file() -> str | None:
    path = next((handler.baseFilename for handler in _log_files()), None)
    return path and min(path, os.path.relpath(path), key=len)


def _note_in_log(message: str) -> None:
    """Write the message to this rank's log file too, if there is one; it is already on the console."""
    for handler in _log_files():
        about = {"name": "hvdtrain.run", "levelno": logging.ERROR, "levelname": "ERROR"}
        handler.handle(logging.makeLogRecord({**about, "msg": message}))


class Failure:
    """One exception, as it was caught."""

    def __init__(self, error: BaseException) -> None:
        self.full = _COLOURS.sub("", "".join(TracebackException.from_exception(error).format()))  # the whole traceback
        self._traceback = TracebackException.from_exception(error)
        self._user_frames = [frame for part in _chain(self._traceback) for frame in part.stack if _is_users(frame)]
        self._text = _plain("".join(self._traceback.format_exception_only())).split("\n")
        self._in_text = _TOLD_BY_TENSORFLOW in self._text[0]

    def traceback(self, log: str | None) -> str:
        """The end of a line, and a traceback whose last frame is the user's, where any is; else the whole one.

        `log` is the file that holds the whole one, if there is any.
        """
        if not self._user_frames and not self._in_text:
            return f":\n{self.full}"
        hidden = 0
        for part in _chain(self._traceback):
            kept = [frame for frame in part.stack if _is_users(frame)]
            hidden += len(part.stack) - len(kept)
            part.stack = StackSummary.from_list(kept)
        where = f"all are in {log}" if log else "--debug shows them"
        note = f" ({hidden} frames of libraries are not shown; {where})" if hidden else ""
        return f"{note}:\n{_plain(''.join(self._traceback.format()))}"

    @property
    def is_users(self) -> bool:
        """Whether code of the user's has a part in it."""
        return bool(self._user_frames) or self._in_text

    def line(self) -> str:
        """The exception and the user's last frame."""
        lines = [line.strip() for line in self._text if line.strip()]
        what = " ".join(lines[-1:] if self._in_text else lines)[:_SHORT_CHARACTERS]
        frame = self._user_frames[-1] if self._user_frames else None
        return what if frame is None else f"{what} ({frame.filename}:{frame.lineno} in {frame.name})"


def _plain(text: str) -> str:
    return _KERAS_ARGUMENTS.sub("", _COLOURS.sub("", text))


def _chain(error: TracebackException) -> Iterator[TracebackException]:
    """An exception, what caused it, and what a group of them holds; in the order in which they are printed."""
    for before in (error.__cause__, error.__context__ if error.__cause__ is None else None):
        if before is not None:
            yield from _chain(before)
    yield error
    for part in error.exceptions or ():
        yield from _chain(part)


def _is_users(frame: FrameSummary) -> bool:
    name = frame.filename
    return not (name.startswith((*_OURS, *_LIBRARY)) or any(part in name for part in (*_INSTALLED, *_GENERATED)))
