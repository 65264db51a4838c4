"""The lines of metrics.jsonl as columns of equal length, for data frames."""

from pathlib import Path
from typing import Any, Final

from hvdtrain.history.goodput import KeptLines, start_lines
from hvdtrain.history.reading import JsonLines, Line, flattened

_FIRST: Final = ("split", "epoch", "step", "samples", "loss")


def read_columns(folder: Path) -> dict[str, list[Any]]:
    """One row for each line of training and validation in metrics.jsonl of the run in `folder`, in their order.

    Returns: column → values of one type (str, bool, int or float), None where a line lacks it. A mapping in a line is
    divided into columns ("memory.max"); lists, which have a number for each rank, are left out, and so is what a later
    start has trained again. Empty where the run has no such line.

    Raises: `hvdtrain.history.reading.UNREADABLE`: the file cannot be read.
    """
    path = folder / "metrics.jsonl"
    kept = KeptLines(start_lines(path))
    lines = [line for line in JsonLines(path) if kept.counts(line) and line.get("split") in ("train", "validation")]
    rows = [_row(line) for line in lines]
    names = dict.fromkeys(name for row in rows for name in row)
    ordered = [name for name in _FIRST if name in names] + [name for name in names if name not in _FIRST]
    return {name: _of_one_type([row.get(name) for row in rows]) for name in ordered}


def _row(line: Line) -> dict[str, Any]:
    return {name: value for name, value in flattened(line) if isinstance(value, str | bool | int | float)}


def _of_one_type(values: list[Any]) -> list[Any]:
    """polars refuses integers among floats, and other mixtures."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1:
        return values
    kind: type = float if kinds == {int, float} else str
    return [None if value is None else kind(value) for value in values]
