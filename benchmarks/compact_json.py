"""JSON that people can read and a repository can keep."""

from __future__ import annotations

import json
from typing import Any

_WIDTH = 150


def compact_json(result: Any) -> str:
    """One line for what is short, such as a block; numbers with six digits."""
    rounded = json.loads(json.dumps(result), parse_float=lambda text: float(f"{float(text):.6g}"))
    return _indented(rounded, 0) + "\n"


def _indented(value: Any, depth: int) -> str:
    """Objects and arrays on one line where that is short enough."""
    flat = json.dumps(value)
    if len(flat) <= _WIDTH or not isinstance(value, (dict, list)) or not value:
        return flat
    pad, end = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {_indented(item, depth + 1)}" for key, item in value.items()]
        return "{" + pad + f",{pad}".join(items) + end + "}"
    return "[" + pad + f",{pad}".join(_indented(item, depth + 1) for item in value) + end + "]"
