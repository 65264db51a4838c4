"""Why a training job failed, in the file from which SageMaker takes FailureReason: its first 1,024 characters.

API_DescribeTrainingJob gives the limit. `sagemaker-training` writes the file as well, without a traceback, but leaves
one that is there alone (`sagemaker_training.files.write_failure_file`).
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import final

from hvdtrain.errors import HvdtrainError

REASON_CHARACTERS = 1024
"""How much of the file SageMaker shows."""
FILE = "failure"

_TRACEBACK = "Traceback (most recent call last)"
_HINT = "HINT: "
_OUR_ERROR = re.compile(r"(rank \d+ on \S+|hvdtrain( \w+)?): ")
_ERROR_LINES = 8  # an error of ours is two lines, rarely more
_EXCEPTION_LINES = 3  # of its text
_EXCEPTION_CHARACTERS = 500
_LOOK_SECONDS = 0.05
_STACK_LINES = 12


def write_failure(output: Path, text: str) -> bool:
    """Write `text` into the folder's file `failure` unless it is there: the first cause wins. Whether it was written.

    Raises:
        HvdtrainError: the folder cannot be written.
    """
    path = output / FILE
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
    """Return when the folder has its file `failure`, or after `seconds`.

    For a worker that only stopped because another did, which is about to say why.
    """
    deadline = time.monotonic() + seconds
    while not (output / FILE).exists() and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


def cause_of(lines: Sequence[str]) -> str:
    """Of what a worker wrote, what tells why it failed; empty if nothing does."""
    listener = CauseParser()
    for line in lines:
        listener.feed(line)
    return listener.cause


@final
class CauseParser:
    """Hears the lines of one stream in their order, and remembers the last that told why its worker failed.

    That is an error of ours with its HINT; or an exception, followed by the end of its traceback. An exception's text
    may have a HINT of its own: an error of ours is known by its beginning.
    """

    def __init__(self) -> None:
        self._own: list[str] | None = None  # an error of ours that may still get its HINT
        self._told: list[str] = []
        self._raised: list[str] = []
        self._stack: deque[str] = deque(maxlen=_STACK_LINES)
        self._margin: int | None = None  # where a traceback's lines begin, while one is heard

    def feed(self, line: str) -> None:
        """Take the next line."""
        if _TRACEBACK in line:
            self._own, self._told, self._raised = None, [], []
            self._stack.clear()
            self._margin = line.index(_TRACEBACK)
        elif self._margin is not None:
            self._hear_traceback(line[self._margin :])
        else:
            if 0 < len(self._raised) < _EXCEPTION_LINES:
                self._raised.append(line)
            self._hear_own(line)

    @property
    def cause(self) -> str:
        """What was told last; empty if nothing was."""
        if self._told:
            return "\n".join(self._told)
        if not self._raised:
            return "\n".join(["A traceback without its end:", *self._stack]) if self._stack else ""
        raised = "\n".join(self._raised)[:_EXCEPTION_CHARACTERS]
        return "\n".join([raised, "The end of its traceback:", *self._stack])

    def _hear_traceback(self, line: str) -> None:
        if not line or line[0].isspace():
            self._stack.append(line)
        else:
            self._raised, self._margin = [line], None

    def _hear_own(self, line: str) -> None:
        if _OUR_ERROR.match(line):
            self._own = [line]
        elif self._own is not None:
            self._own.append(line)
        if self._own is None:
            return
        if line.startswith(_HINT) or (len(self._own) == 1 and _HINT in line):
            self._told, self._own = self._own, None
        elif len(self._own) > _ERROR_LINES:
            self._own = None
