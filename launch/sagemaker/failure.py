"""Why a training job failed, in the file from which SageMaker takes FailureReason: its first 1,024 characters.

API_DescribeTrainingJob gives the limit. `sagemaker-training` writes the file as well, without a traceback, but leaves
one that is there alone (`sagemaker_training.files.write_failure_file`).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.errors import HvdtrainError

REASON_CHARACTERS = 1024
"""How much of the file SageMaker shows."""
FILE = "failure"

_TRACEBACK = "Traceback (most recent call last)"
_HINT = "HINT: "
_OUR_ERROR = re.compile(r"(rank \d+ on \S+|hvdtrain( \w+)?): ")
_ERROR_LINES = 8  # an error of ours is two lines, rarely more
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
    """Of what a worker wrote last, what tells why it failed; empty if nothing does.

    That is an error of ours with its HINT; or the exception that ended it, followed by the end of its traceback.
    """
    hint = max((i for i, line in enumerate(lines) if _HINT in line), default=-1)
    stack = max((i for i, line in enumerate(lines) if _TRACEBACK in line), default=-1)
    if hint > stack:
        return _own_error(lines[max(0, hint - _ERROR_LINES) : hint + 1])
    return _exception(lines[stack + 1 :]) if stack >= 0 else ""


def _own_error(lines: Sequence[str]) -> str:
    begin = max((i for i, line in enumerate(lines) if _OUR_ERROR.match(line)), default=max(0, len(lines) - 2))
    return "\n".join(lines[begin:])


def _exception(lines: Sequence[str]) -> str:
    at = next((i for i, line in enumerate(lines) if line and not line[0].isspace()), len(lines))
    raised = "\n".join(lines[at : at + 3])[:_EXCEPTION_CHARACTERS]
    return "\n".join([raised, "The end of its traceback:", *lines[max(0, at - _STACK_LINES) : at]])
