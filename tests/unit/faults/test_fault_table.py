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


def test_every_test_of_an_attack_is_there_and_in_the_table() -> None:
    """Those that attack nothing show that what is refused works where it is sound."""
    folder = ROOT / "tests" / "faults" / "attacks"
    named = {test for _, tests in table().ATTACKS for test in tests}  # type: ignore[attr-defined]
    found = {
        f"{file.name}::{name}"
        for file in folder.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    assert found - {"test_archives.py::test_a_sound_source_runs"} == named
    page = (ROOT / "docs" / "faults.md").read_text()
    assert [test for test in named if test.partition("::")[2] not in page] == []


def test_the_page_has_every_row_that_is_recorded() -> None:
    files = sorted((ROOT / "tests" / "faults").glob("test_*.py"))
    recorded = {int(number) for file in files for number in re.findall(r"record\((\d+),", file.read_text())} | {1, 2}
    page = (ROOT / "docs" / "faults.md").read_text()
    rows = {int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert rows == recorded | set(table().ELSEWHERE) == set(range(1, 36))  # type: ignore[attr-defined]
