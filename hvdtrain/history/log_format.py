"""The lines of logs/rank_N.log: how they are written, and read again.

    2026-11-24T23:38:03.123+00:00 INFO hvdtrain.run: epoch ended: epoch 1, step 30

The time has the offset of its host's zone, so that hosts in different zones, and the two sides of a change of the clock
in spring or autumn, can be brought into one order. The lines of a traceback follow the line of their record.
"""

import logging
import re
from datetime import datetime
from typing import Final, NamedTuple

_HEAD: Final = re.compile(
    rb"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,]\d{3}(?:Z|[+-]\d\d:\d\d)?) (DEBUG|INFO|WARNING|ERROR|CRITICAL) "
)
"""Versions before 0.2 wrote a space, a comma and no zone: then it is the reader's own."""


class LogFormatter(logging.Formatter):
    """Formats a record as above."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802  overrides
        return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")


class Head(NamedTuple):
    """What the first line of a record says.

    Attributes:
        time: seconds since the epoch.
        level: as `logging` counts them.
    """

    time: float
    level: int


def head_of(line: bytes) -> Head | None:
    """None for a line that continues a record, such as one of a traceback."""
    match = _HEAD.match(line)
    if match is None:
        return None
    try:
        return Head(
            datetime.fromisoformat(match[1].decode()).timestamp(), logging.getLevelNamesMapping()[match[2].decode()]
        )
    except (ValueError, OverflowError, OSError):
        return None  # a date such as the 31st of February
