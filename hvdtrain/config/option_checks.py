"""Checks that several groups of options need: ranges, durations, options that have no effect without another."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from hvdtrain.errors import UsageError

Range = tuple[str, Callable[[float], bool]]
"""What a number must be, in words and as a test."""

AT_LEAST_ONE: Final[Range] = ("1 or more", lambda value: 1 <= value < float("inf"))
NOT_NEGATIVE: Final[Range] = ("0 or a positive number", lambda value: 0 <= value < float("inf"))
POSITIVE: Final[Range] = ("a positive number", lambda value: 0 < value < float("inf"))
SHARE: Final[Range] = ("a share from 0 to below 1", lambda value: 0 <= value < 1)


_UNITS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_AMOUNT = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,9})?) ?(?P<unit>s|min|h|d)")
_CLOCK = re.compile(r"(?:(?:(?P<days>\d{1,4})-)?(?P<hours>\d{1,4}):)?(?P<minutes>\d{1,2}):(?P<seconds>\d{1,2})")


def option_of(name: str) -> str:
    """ "data.max_corrupt" → "--data.max-corrupt"."""
    return "--" + name.replace("_", "-")


def require_range(options: object, allowed: Range, examples: Mapping[str, str], prefix: str = "") -> None:
    """Raise `UsageError` unless each option that is given is in the range.

    Args:
        options: has the options as attributes; None is not given.
        allowed: the range.
        examples: name of an option → a value to try.
        prefix: "data." for options of the data.
    """
    must, holds = allowed
    for name, example in examples.items():
        value, option = getattr(options, name), option_of(prefix + name)
        if value is not None and not holds(value):
            raise UsageError(f"{option} is {value}.", f"It must be {must}.", f"try {option} {example}.")


def require_companion(options: Any, name: str, companions: Mapping[str, Sequence[str]], without: str) -> None:
    """Raise `UsageError` where an option is given that only goes with some values of the option `name`.

    Args:
        options: has the options as attributes; None and False are not given.
        name: the option that decides.
        companions: name of an option → the values that it goes with.
        without: why the option means nothing where `name` is not given.
    """
    value = getattr(options, name)
    for other, values in companions.items():
        given = getattr(options, other)
        if given is None or given is False or value in values:
            continue
        option = option_of(name)
        raise UsageError(
            f"{option_of(other)} is given {f'with {option} {value}' if value else f'without {option}'}.",
            "It would change nothing." if value else without,
            f"it goes with {option} {' or '.join(values)}.",
        )


def refuse_first(combinations: Sequence[tuple[object, str, str, str]]) -> None:
    """Raise `UsageError` for the first of (whether it is asked for, fact, conflict, hint) that is asked for."""
    for asked, fact, conflict, hint in combinations:
        if asked:
            raise UsageError(fact, conflict, hint)


def seconds_of(duration: str, option: str) -> float:
    """Seconds of "5400", "90min", "1.5h", "90:00", "1:30:00" or "0-01:30:00", which all are the same.

    Raises:
        UsageError: it is none of these, or not more than 0; `option` says where it was given.
    """
    seconds = _seconds(duration)
    if seconds is None or not 0 < seconds < float("inf"):
        raise UsageError(
            f"{option} is {duration}.",
            "It must be a time: seconds, minutes:seconds, hours:minutes:seconds, days-hours:minutes:seconds, or a "
            "number with s, min, h or d.",
            f"three and a half hours are {option} 3:30:00 or {option} 3.5h.",
        )
    return seconds


def _seconds(duration: str) -> float | None:
    try:
        return float(duration)
    except ValueError:
        pass
    if (match := _AMOUNT.fullmatch(duration.strip())) is not None:
        return float(match["number"]) * _UNITS[match["unit"]]
    match = _CLOCK.fullmatch(duration.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(match[part] or 0) for part in ("days", "hours", "minutes", "seconds"))
    return ((days * 24.0 + hours) * 60 + minutes) * 60 + seconds
