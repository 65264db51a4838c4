"""Values of a JSON object that another program, or another version, may have written."""

import math
from collections.abc import Mapping
from typing import Any


def number(values: Mapping[str, Any] | None, key: str) -> float | None:
    """The finite number of a key, None where it has none."""
    value = None if values is None else values.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def whole(values: Mapping[str, Any] | None, key: str) -> int | None:
    """The same for a whole number."""
    value = number(values, key)
    return None if value is None or value != int(value) else int(value)


def text(values: Mapping[str, Any] | None, key: str) -> str:
    """The text of a key, "" where it has none."""
    value = None if values is None else values.get(key)
    return value if isinstance(value, str) else ""


def mapping(values: Mapping[str, Any] | None, key: str) -> Mapping[str, Any]:
    """The object of a key, an empty one where it has none."""
    value = None if values is None else values.get(key)
    return value if isinstance(value, dict) else {}
