"""metrics.jsonl as columns of equal length and one type each, as data frames take them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hvdtrain.history.columns import read_columns


def columns_of(folder: Path, *lines: dict[str, Any]) -> dict[str, list[Any]]:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_columns(folder)


def test_lines_of_training_and_validation_are_rows(tmp_path: Path) -> None:
    train = {"split": "train", "step": 1, "loss": 2, "memory": {"max": 7}, "seconds": [[1, 2]]}
    validation = {"split": "validation", "step": 1, "loss": 1.5, "best": True}
    columns = columns_of(tmp_path, train, {"event": "checkpoint", "step": 1}, validation)
    assert columns == {
        "split": ["train", "validation"],
        "step": [1, 1],
        "loss": [2.0, 1.5],
        "memory.max": [7, None],
        "best": [None, True],
    }
    assert [type(value) for value in columns["loss"]] == [float, float]


def test_a_run_without_lines_has_no_columns(tmp_path: Path) -> None:
    assert read_columns(tmp_path) == {}
    assert columns_of(tmp_path) == {}
