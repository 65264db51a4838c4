"""Slurm's short forms: `n[1-3,07],m2` for node names and `4(x2),3` for tasks per node.

Grammar from the Slurm manual pages: scontrol(1) `show hostnames`, and sbatch(1) SLURM_TASKS_PER_NODE.
"""

import math
import re
from collections.abc import Iterator
from itertools import product
from typing import TypeVar

from hvdtrain.errors import UsageError

LIMIT = 65_536  # most nodes or counts that one text may expand to: Slurm's own MAX_RANGE is 64 * 1024
T = TypeVar("T")

_NO_NODES = "This is not a valid node list such as n[1-3,07],m2."
_NO_TASKS = "This is not a valid list of tasks per node such as 4(x2),3."
_TOO_MANY = f"That stands for more than {LIMIT} nodes, the most that Slurm allows in one range."

_COMMA = re.compile(r",(?![^\[\]]*\])")
_NAME = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
_PART = re.compile(r"\[([^\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_COUNT = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?", re.ASCII)


def expand_node_list(text: str, variable: str = "the node list") -> tuple[str, ...]:
    """Node names in the order written; leading zeros are kept: `n[08-10]` → n08, n09, n10. Raises UsageError, which
    names `variable`: not a node list, or one of more than LIMIT nodes."""
    names: list[str] = []
    for item in _COMMA.split(text):
        if _NAME.fullmatch(item) is None:
            raise _refusal(text, variable, _NO_NODES)
        names.extend(_expand_name(item, text, variable))
    return tuple(_limited(names, text, variable))


def _expand_name(name: str, text: str, variable: str) -> Iterator[str]:
    parts = [_expand_ranges(m[1], text, variable) if m[1] is not None else [m[2]] for m in _PART.finditer(name)]
    if math.prod(map(len, parts)) > LIMIT:
        raise _refusal(text, variable, _TOO_MANY)
    return ("".join(choice) for choice in product(*parts))


def _expand_ranges(ranges: str, text: str, variable: str) -> list[str]:
    numbers: list[str] = []
    for item in ranges.split(","):
        match = _RANGE.fullmatch(item)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise _refusal(text, variable, _NO_NODES)
        first, last, width = int(match[1]), int(match[2] or match[1]), len(match[1])
        if last - first >= LIMIT:
            raise _refusal(text, variable, _TOO_MANY)
        numbers.extend(f"{number:0{width}d}" for number in range(first, last + 1))
    return numbers


def expand_tasks_per_node(text: str, variable: str = "the list of tasks per node") -> tuple[int, ...]:
    """Tasks of each node in node order: `4(x2),3` → 4, 4, 3. Errors as `expand_node_list`."""
    counts: list[int] = []
    for item in text.split(","):
        match = _COUNT.fullmatch(item)
        if match is None:
            raise _refusal(text, variable, _NO_TASKS)
        if int(match[2] or 1) > LIMIT:
            raise _refusal(text, variable, _TOO_MANY)
        counts.extend([int(match[1])] * int(match[2] or 1))
    return tuple(_limited(counts, text, variable))


def _limited(items: list[T], text: str, variable: str) -> list[T]:
    if len(items) > LIMIT:
        raise _refusal(text, variable, _TOO_MANY)
    return items


def _refusal(text: str, variable: str, conflict: str) -> UsageError:
    return UsageError(f"{variable} is {text[:80]!r}.", conflict, f"unset {variable} if Slurm did not set it.")
