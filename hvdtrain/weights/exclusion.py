"""Which weights of a file a training does not start from, as `--init-weights-exclude` names them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import final

from hvdtrain.errors import UsageError

_LISTED = 20


@final
class Exclusion:
    """A set of names by patterns.

    Args:
        text: patterns with commas between; None: nothing is excluded.
    """

    def __init__(self, text: str | None) -> None:
        self._patterns = [pattern.strip() for pattern in (text or "").split(",") if pattern.strip()]
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        matching = [pattern for pattern in self._patterns if fnmatchcase(name, pattern)]
        self._used.update(matching)
        return bool(matching)

    def require_used(self, origin: str, names: Iterable[str]) -> None:
        """Raise `UsageError` for a pattern that none of the names asked for so far had: most likely a slip."""
        idle = [pattern for pattern in self._patterns if pattern not in self._used]
        if idle:
            raise UsageError(
                f"--init-weights-exclude names {', '.join(idle)}.",
                f"Neither the model nor {origin} has such a weight.",
                f"choose among {some(list(names))}.",
            )

    def hint(self, names: Sequence[str]) -> str:
        """The flag that leaves `names` out too; "" where they are so many that it must be another model."""
        if len(names) > _LISTED:
            return ""
        return f"--init-weights-exclude '{','.join([*self._patterns, *dict.fromkeys(names)])}'"


def some(names: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
