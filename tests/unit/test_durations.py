"""How long tests take is noted, and those that take longer than before are named, however fast the machine is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support import durations
from support.commands import run_python
from support.durations import Taken, grown, keep_as_reference, note, noted, reference

BEFORE = {f"tests/unit/test_a.py::test_{number}": Taken(10.0, 5.0) for number in range(9)}
FIRST = "tests/unit/test_a.py::test_0"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("unit", "parallel"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / "test_a.py").touch()
    places = {"ROOT": tmp_path, "NOTED": tmp_path / "noted", "REFERENCE": tmp_path / "reference.json"}
    for name, value in places.items():
        monkeypatch.setattr(durations, name, value)
    return tmp_path


def test_what_grew_is_named_and_by_how_much() -> None:
    now = {**BEFORE, FIRST: Taken(30.0, 6.0)}
    assert grown(now, BEFORE) == [f"+20.0 s: {FIRST} (30.0 s, CPU time 6.0 s; was 10.0 s, CPU time 5.0 s)"]


def test_a_slower_machine_is_not_a_slower_test() -> None:
    now = {test: Taken(3 * taken.wall, taken.cpu) for test, taken in BEFORE.items()}
    assert grown(now, BEFORE) == []
    assert [line.split()[0] for line in grown({**now, FIRST: Taken(60.0, 5.0)}, BEFORE)] == ["+30.0"]


@pytest.mark.parametrize("wall", [14.9, 12.0, 1.0])
def test_little_growth_is_noise(wall: float) -> None:
    assert grown({**BEFORE, FIRST: Taken(wall, 5.0)}, BEFORE) == []
    short = {FIRST: Taken(1.0, 1.0), **{test: taken for test, taken in BEFORE.items() if test != FIRST}}
    assert grown({**short, FIRST: Taken(3.9, 1.0)}, short) == []


def test_a_new_long_test_is_named() -> None:
    assert "not in the reference" in grown({**BEFORE, "tests/unit/test_b.py::test_new": Taken(9.0, 1.0)}, BEFORE)[0]


def test_each_folder_s_last_run_is_kept(checkout: Path) -> None:
    parallel = {"tests/parallel/test_a.py::test_x": Taken(2.0, 1.0)}
    note({**BEFORE, **parallel})
    note({FIRST: Taken(1.5, 1.0)})
    assert noted() == {FIRST: Taken(1.5, 1.0), **parallel}
    (checkout / "tests" / "parallel" / "test_a.py").unlink()
    note({"tests/parallel/test_b.py::test_gone": Taken(1.0, 1.0)})
    assert noted() == {FIRST: Taken(1.5, 1.0)}


def test_the_reference_has_the_longer_ones(checkout: Path) -> None:
    note({FIRST: Taken(1.5, 1.0), "tests/unit/test_a.py::test_short": Taken(0.2, 0.2)})
    keep_as_reference()
    note({"tests/parallel/test_a.py::test_x": Taken(2.0, 1.0)})
    (checkout / "noted" / "unit.json").unlink()
    keep_as_reference()
    assert reference() == {FIRST: Taken(1.5, 1.0), "tests/parallel/test_a.py::test_x": Taken(2.0, 1.0)}


def test_cpu_time_of_what_a_test_starts_is_its_own(tmp_path: Path) -> None:
    spin = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    before = durations.cpu_seconds()
    assert (
        run_python(["-c", f"import subprocess; subprocess.run([{sys.executable!r}, '-c', {spin!r}])"], tmp_path).code
        == 0
    )
    assert durations.cpu_seconds() - before >= 0.3
