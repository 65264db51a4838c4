"""JSON files of a run: what is for every reader has no NaN, and what only hvdtrain reads comes back as it was."""

from __future__ import annotations

import json
import math
from pathlib import Path

from hvdtrain.files import finite, write_json


def test_numbers_that_are_not_finite_come_back(tmp_path: Path) -> None:
    """Hashes of manifests are of what is read back, and a plan's fastest links are infinitely fast."""
    write_json(tmp_path / "a.json", {"bandwidth": math.inf, "values": [1.0, math.nan]})
    read = json.loads((tmp_path / "a.json").read_text())
    assert read["bandwidth"] == math.inf
    assert math.isnan(read["values"][1])


def test_for_every_reader_they_are_null_at_any_depth() -> None:
    content = {"a": math.nan, "b": [{"c": -math.inf}, (1.5, math.nan)], "d": "nan", "e": 3}
    assert finite(content) == {"a": None, "b": [{"c": None}, [1.5, None]], "d": "nan", "e": 3}
