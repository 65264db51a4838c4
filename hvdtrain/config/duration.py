"""Spans of time as people and Slurm write them."""

from __future__ import annotations

import re

from hvdtrain.errors import UsageError

_CLOCK = re.compile(r"(?:(?:(?P<days>\d{1,4})-)?(?P<hours>\d{1,4}):)?(?P<minutes>\d{1,2}):(?P<seconds>\d{1,2})")


def seconds_of(duration: str, flag: str) -> float:
    """Seconds of "5400", "90:00", "1:30:00" or "0-01:30:00", which all are the same.

    Raises:
        UsageError: it is none of these, or not more than 0; `flag` says where it was given.
    """
    seconds = _seconds(duration)
    if seconds is None or not 0 < seconds < float("inf"):
        raise UsageError(
            f"{flag} is {duration}.",
            "It must be a time: seconds, minutes:seconds, hours:minutes:seconds, or days-hours:minutes:seconds.",
            f"three and a half hours are {flag} 3:30:00.",
        )
    return seconds


def _seconds(duration: str) -> float | None:
    try:
        return float(duration)
    except ValueError:
        pass
    match = _CLOCK.fullmatch(duration.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(match[part] or 0) for part in ("days", "hours", "minutes", "seconds"))
    return ((days * 24.0 + hours) * 60 + minutes) * 60 + seconds
