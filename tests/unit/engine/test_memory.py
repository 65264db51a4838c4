"""Memory is that of this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdtrain.engine.memory import resident_bytes


def test_it_is_what_linux_states_for_people() -> None:
    (stated,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:"))
    kilobytes = int(stated.split()[1])
    assert resident_bytes() == pytest.approx(kilobytes * 1024, rel=0.1)


def test_where_nobody_states_it_it_is_0(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", absent)
    assert resident_bytes() == 0
