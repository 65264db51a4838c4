"""What a failing rank leaves for its launcher: one JSON file, whose path the launcher gives in HVDTRAIN_FAILURE_FILE.

The launcher decides from these records which rank caused the end of a job. A rank that leaves none was killed, or
crashed below Python.
"""

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

FILE_VARIABLE = "HVDTRAIN_FAILURE_FILE"

Kind = Literal["exception", "error", "lost_rank", "stall"]
"""An exception that hvdtrain did not raise, an error that it did, another rank that has ended, one that has stalled."""


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """Why one rank failed.

    Attributes:
        kind: what happened.
        rank: its number in the job.
        host: where it ran.
        cause: the error's own text.
        exit_code: with which it leaves.
        detail: what its launcher should print, where the rank itself has printed a single line; else empty.
    """

    kind: Kind
    rank: int
    host: str
    cause: str
    exit_code: int
    detail: str = ""

    @property
    def is_consequence(self) -> bool:
        """Whether this rank failed only because another one did."""
        return self.kind in ("lost_rank", "stall")


def write_failure(kind: Kind, rank: int, cause: str, exit_code: int, detail: str = "") -> bool:
    """Leave a record for the launcher; returns False if it asks for none. A later record replaces an earlier one."""
    path = os.environ.get(FILE_VARIABLE)
    if not path:
        return False
    record = FailureRecord(kind, rank, socket.gethostname(), cause, exit_code, detail)
    try:
        Path(f"{path}.new").write_text(json.dumps(asdict(record)) + "\n")
        os.replace(f"{path}.new", path)
    except OSError:
        return False  # a full disk must not hide the error itself
    return True


def read_failure(path: Path) -> FailureRecord | None:
    """The record at `path`, or None if the rank has left none."""
    try:
        return FailureRecord(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
