"""Numbers in lines that a reader did not write, for sums and pictures: none is as good as infinite."""

from typing import Any, Final

_LARGEST: Final = 1e100  # what is larger has diverged: sums and pictures of it would be infinite
_MOST_STEPS: Final = 2**62


def finite(value: Any) -> float | None:
    """The number that `value` is; None where it is none, or as good as infinite."""
    if type(value) is float:  # the usual case
        return value if -_LARGEST < value < _LARGEST else None  # not NaN, either
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if -_LARGEST < number < _LARGEST else None


def step_of(line: dict[str, Any]) -> int | None:
    """The step of a line; None where it has none."""
    step = finite(line.get("step"))
    return int(step) if step is not None and 0 <= step < _MOST_STEPS else None


def seconds_in(line: dict[str, Any], key: str = "seconds") -> float:
    """A time in a line; 0 where it has none, as in lines of older versions."""
    return max(0.0, finite(line.get(key)) or 0.0)
