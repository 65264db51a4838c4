"""docs/faults.md names tests that are there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def table() -> object:
    spec = importlib.util.spec_from_file_location("fault_table", ROOT / "tests" / "faults" / "table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_test_of_the_table_is_there() -> None:
    for _, _, test in table().ELSEWHERE.values():  # type: ignore[attr-defined]
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), test


def test_the_page_has_every_row_that_is_recorded() -> None:
    tests = (ROOT / "tests" / "faults" / "test_faults.py").read_text()
    recorded = {int(number) for number in re.findall(r"record\((\d+),", tests)} | {1, 2}
    page = (ROOT / "docs" / "faults.md").read_text()
    rows = {int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert rows == recorded | set(table().ELSEWHERE)  # type: ignore[attr-defined]
