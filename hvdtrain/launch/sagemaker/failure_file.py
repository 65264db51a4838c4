"""Why a training job failed, in the file from which SageMaker takes FailureReason: its first 1,024 characters.

API_DescribeTrainingJob gives the limit. `sagemaker-training` writes the file as well, without a traceback, but leaves
one that is there alone (`sagemaker_training.files.write_failure_file`).
"""

import os
import time
from collections import deque
from pathlib import Path

from hvdtrain.errors import HvdtrainError
from hvdtrain.launch.processes.worker_group import ERR, OUT
from hvdtrain.launch.supervisor.worker_state import OutputTail

REASON_CHARACTERS = 1024  # how much of the file SageMaker shows
FAILURE_FILE = "failure"

_TRACEBACK = "Traceback (most recent call last)"
_EXCEPTION_LINES = 3  # of its text
_EXCEPTION_CHARACTERS = 500
_LOOK_SECONDS = 0.05
_STACK_LINES = 12


def write_failure(output: Path, text: str) -> bool:
    """Write `text` into the folder's file `failure` unless it is there: the first cause wins. Whether it was written.
    Raises HvdtrainError: the folder cannot be written."""
    path = output / FAILURE_FILE
    try:
        output.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(text.encode(errors="replace"))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if isinstance(error, FileExistsError) and path.exists():  # another rank was faster
            return False
        raise HvdtrainError(
            f"{path} cannot be written: {error.strerror or error}.",
            f"SageMaker would not tell why the job failed: {text[:REASON_CHARACTERS]}",
            "let the container's user write its output folder.",
        ) from error
    return True


def await_first_cause(output: Path, seconds: float) -> None:
    """Return when `failure` is there, or after `seconds`: for a worker that only stopped because another did."""
    deadline = time.monotonic() + seconds
    while not (output / FAILURE_FILE).exists() and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


def cause_of(traceback: str) -> str:
    """The exception of a printed traceback, followed by the traceback's end; empty if there is none."""
    parser = TracebackParser()
    for line in traceback.splitlines():
        parser.feed(line)
    return parser.cause


class TracebackParser:
    """Reads the lines of one stream in their order, and keeps the last exception with the end of its traceback."""

    def __init__(self) -> None:
        self._exception: list[str] = []
        self._stack: deque[str] = deque(maxlen=_STACK_LINES)
        self._margin: int | None = None  # where a traceback's lines begin, while one is read

    def feed(self, line: str) -> None:
        if _TRACEBACK in line:
            self._exception = []
            self._stack.clear()
            self._margin = line.index(_TRACEBACK)
        elif self._margin is not None:
            frame = line[self._margin :]
            if not frame or frame[0].isspace():
                self._stack.append(frame)
            else:
                self._exception, self._margin = [frame], None
        elif 0 < len(self._exception) < _EXCEPTION_LINES:
            self._exception.append(line)

    @property
    def cause(self) -> str:
        """The last exception; empty if there was none."""
        if not self._exception:
            return "\n".join(["A traceback without its end:", *self._stack]) if self._stack else ""
        exception = "\n".join(self._exception)[:_EXCEPTION_CHARACTERS]
        return "\n".join([exception, "The end of its traceback:", *self._stack])


class OutputParser:
    """Reads the output of one worker of a program that leaves no record of its failure."""

    def __init__(self) -> None:
        self._parsers = {ERR: TracebackParser(), OUT: TracebackParser()}
        self.tail = OutputTail(on_line=lambda stream, line: self._parsers[stream].feed(line))

    @property
    def cause(self) -> str:
        """The exception on standard error, else that on standard output; empty if there is none."""
        self.tail.finish()
        return next(filter(None, (parser.cause for parser in self._parsers.values())), "")
