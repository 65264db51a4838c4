"""`--trace`: which updates are recorded."""

import re
from dataclasses import dataclass
from typing import Final

from hvdtrain.errors import UsageError

WARM_UP: Final = 10
"""Updates after the start that are not recorded, where only a number is given: they compile, connect, fill caches."""

MOST: Final = 1000
"""Updates of one trace: the events of that many steps fit into memory."""

_STEPS = re.compile(r"(?:(?P<first>\d{1,15}):)?(?P<last>\d{1,15})")


@dataclass(frozen=True)
class TraceSteps:
    """Updates are numbered from 1 since the start of training.

    Attributes:
        first: the first one; None: after `WARM_UP`.
        last: the last one, or how many where `first` is None.
    """

    first: int | None
    last: int

    def after(self, step: int) -> tuple[int, int] | None:
        """The first and the last update that are recorded where training goes on after update `step`; None: none."""
        if self.first is None:
            return step + WARM_UP + 1, step + WARM_UP + self.last
        first = max(self.first, step + 1)
        return (first, self.last) if first <= self.last else None


def trace_steps(text: str) -> TraceSteps:
    """Of "100:110" or "10".

    Raises:
        UsageError: it is neither, or too many updates.
    """
    match = _STEPS.fullmatch(text.strip())
    if match is None:
        raise _refusal(text, "It must be the first and the last update to record, or how many.")
    first, last = None if match["first"] is None else int(match["first"]), int(match["last"])
    count = last if first is None else last - first + 1
    if count < 1 or first == 0:
        raise _refusal(text, "It contains no update: they are numbered from 1.")
    if count > MOST:
        raise _refusal(text, f"A trace of {count} updates would be too large: {MOST} are the most.")
    return TraceSteps(first, last)


def require_trained(text: str, updates: int) -> None:
    """Raise `UsageError` where a training of so many updates has none of those of `--trace`."""
    first = trace_steps(text).first
    if first is not None and first > updates:
        raise UsageError(
            f"--trace is {text}.",
            f"Training ends after update {updates}, so that nothing would be recorded.",
            f"name earlier updates, e.g. --trace {max(1, updates - 9)}:{updates}.",
        )


def _refusal(text: str, conflict: str) -> UsageError:
    return UsageError(f"--trace is {text}.", conflict, "try --trace 100:110, or --trace 10.")
