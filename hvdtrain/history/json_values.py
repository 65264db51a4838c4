"""Values of a JSON object that another program, or another version, may have written."""

from collections.abc import Mapping
from typing import Any

from hvdtrain.history.values import finite


def number(values: Mapping[str, Any] | None, key: str) -> float | None:
    """The finite number of a key, None where it has none."""
    return None if values is None else finite(values.get(key))


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
