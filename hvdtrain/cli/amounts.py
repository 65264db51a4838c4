"""Amounts of time as text."""

from typing import Final

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def in_time(seconds: float) -> str:
    """For people, in whole units of which there are two or more: "40 s", "119 s", "2 min", "47 h", "4 d"."""
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= 2 * size), _UNITS[-1])
    return f"{seconds / size:.0f} {unit}"
