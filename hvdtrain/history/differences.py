"""What differs between mappings of several runs: their configs, their environments."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final


class _Missing:
    """The value of a key that a mapping lacks."""

    def __repr__(self) -> str:
        return "–"


MISSING: Final = _Missing()
_DEEPEST: Final = 20  # mappings inside of each other; what is deeper is not a config of ours


@dataclass(frozen=True)
class Difference:
    """A key whose values are not all equal."""

    key: str  # with those of outer mappings before it: "data.dir"
    values: tuple[Any, ...]  # one for each mapping, in their order; `MISSING` where a mapping lacks the key


def differences(mappings: Sequence[Mapping[str, Any]], ignored: Collection[str] = ()) -> list[Difference]:
    """The keys whose values differ, in the order in which they are first met.

    Args:
        mappings: of any depth; lists are compared as a whole.
        ignored: keys that are left out, with all that is inside of them.
    """
    flat = [dict(flattened(values, frozenset(ignored))) for values in mappings]
    keys = dict.fromkeys(key for values in flat for key in values)
    rows = (Difference(key, tuple(values.get(key, MISSING) for values in flat)) for key in keys)
    return [row for row in rows if not all(_equal(row.values[0], value) for value in row.values[1:])]


def flattened(
    values: Mapping[str, Any], ignored: frozenset[str] = frozenset(), before: str = ""
) -> Iterator[tuple[str, Any]]:
    """The values inside of mappings, each with its keys: "data.dir" of {"data": {"dir": …}}.

    Args:
        ignored: such keys, left out with all that is inside of them.
        before: stands before each key.
    """
    for name, value in values.items():
        key = f"{before}{name}"
        if key in ignored:
            continue
        if isinstance(value, Mapping) and value and key.count(".") < _DEEPEST:
            yield from flattened(value, ignored, f"{key}.")
        else:
            yield key, value


def _equal(first: Any, other: Any) -> bool:
    """By their text where they are not comparable or NaN; True is not 1."""
    return repr(first) == repr(other) or (first == other and isinstance(first, bool) == isinstance(other, bool))
