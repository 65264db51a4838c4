"""Why a training job failed, in the file from which SageMaker takes FailureReason: its first 1,024 characters.

API_DescribeTrainingJob gives the limit. `sagemaker-training` writes the file as well, without a traceback, but leaves
one that is there alone (`sagemaker_training.files.write_failure_file`).
"""

import os
import time
from itertools import takewhile
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
_MOST_LINES = 5000  # of a traceback and what follows it: Python's own limit is 1000 frames


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


def cause_of(printed: str) -> str:
    """The last exception of what was printed, followed by the end of its traceback; empty if there is none."""
    lines = printed.splitlines()
    begin = max((number for number, line in enumerate(lines) if _TRACEBACK in line), default=None)
    if begin is None:
        return ""
    margin = lines[begin].index(_TRACEBACK)  # where a traceback's lines begin
    frames = [line[margin:] for line in lines[begin + 1 :]]
    stack = list(takewhile(lambda frame: not frame or frame[0].isspace(), frames))
    end = stack[-_STACK_LINES:]
    if len(stack) == len(frames):
        return "\n".join(["A traceback without its end:", *end]) if end else ""
    rest = lines[begin + 2 + len(stack) :][: _EXCEPTION_LINES - 1]
    exception = "\n".join([frames[len(stack)], *rest])[:_EXCEPTION_CHARACTERS]
    return "\n".join([exception, "The end of its traceback:", *end])


class OutputParser:
    """Reads the output of one worker of a program that leaves no record of its failure."""

    def __init__(self) -> None:
        self._lines: dict[int, list[str]] = {ERR: [], OUT: []}  # of each stream, since the last traceback began
        self.tail = OutputTail(on_line=self._take)

    def _take(self, stream: int, line: str) -> None:
        lines = self._lines[stream]
        if _TRACEBACK in line:
            lines.clear()
        if _TRACEBACK in line or 0 < len(lines) < _MOST_LINES:
            lines.append(line)

    @property
    def cause(self) -> str:
        """The exception on standard error, else that on standard output; empty if there is none."""
        self.tail.finish()
        return next(filter(None, (cause_of("\n".join(lines)) for lines in self._lines.values())), "")
