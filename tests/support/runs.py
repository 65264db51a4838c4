"""What a run has written into its folder, read once for all tests: result.json, env.json, metrics.jsonl, the ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Line = dict[str, Any]


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def result_of(folder: Path) -> dict[str, Any]:
    """result.json."""
    content: dict[str, Any] = read_json(folder / "result.json")
    return content


def topology_of_run(folder: Path) -> dict[str, Any]:
    """The launcher and the world as env.json has them."""
    content: dict[str, Any] = read_json(folder / "env.json")["topology"]
    return content


def json_lines(path: Path, **wanted: Any) -> list[Line]:
    """Whole lines so far, none where there is no file. Args: `wanted`: only lines with these values."""
    text = path.read_text() if path.exists() else ""
    hints = [json.dumps(value) for value in wanted.values()]  # most lines need no parsing then
    written = [line for line in text.rpartition("\n")[0].splitlines() if all(hint in line for hint in hints)]
    lines: list[Line] = [json.loads(line) for line in written]
    return [line for line in lines if wanted.items() <= line.items()]


def lines_of(folder: Path, **wanted: Any) -> list[Line]:
    """Lines of metrics.jsonl, such as those with `split="train"` or `event="resumed"`."""
    return json_lines(folder / "metrics.jsonl", **wanted)


def trained_lines(folder: Path) -> int:
    """How many lines of metrics.jsonl training has written so far."""
    path = folder / "metrics.jsonl"
    return path.read_text().count('"split": "train"') if path.exists() else 0


def ledger_of(folder: Path, **wanted: Any) -> list[Line]:
    """Lines of the ledger of records."""
    return json_lines(folder / "audit" / "ledger.jsonl", **wanted)


def reports_of_ranks(folder: Path, size: int) -> list[Any]:
    """What each rank of a test's own program has left in rank_N.json."""
    return [read_json(folder / f"rank_{rank}.json") for rank in range(size)]


def latest_checkpoint(folder: Path) -> Path:
    """The folder that checkpoints/latest names."""
    checkpoints = folder / "checkpoints"
    return checkpoints / (checkpoints / "latest").read_text().strip()
