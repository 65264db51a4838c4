"""Memory is that of this process, and asked for no more often than it is to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdtrain.engine import memory
from hvdtrain.engine.memory import ResidentMemory, resident_bytes


def test_it_is_what_linux_states_for_people() -> None:
    (stated,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    kilobytes = int(stated.split()[1])
    assert resident_bytes() == pytest.approx(kilobytes * 1024, rel=0.1)


def test_where_nobody_states_it_it_is_0(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", absent)
    assert resident_bytes() == 0


def test_it_is_asked_for_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now, answers = 100.0, iter([5, 7])
    monkeypatch.setattr(memory.time, "monotonic", lambda: now)
    monkeypatch.setattr(memory, "resident_bytes", lambda: next(answers))
    resident = ResidentMemory(seconds=2.0)
    read = []
    for now in (100.0, 101.9, 102.0, 103.0):  # noqa: B007  the clock reads it
        read.append(resident.read())
    assert read == [5, 5, 7, 7]
