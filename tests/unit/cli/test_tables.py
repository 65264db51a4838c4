"""Tables go to pipes in whole lines, whatever the terminal beside them is."""

from __future__ import annotations

import pytest

from hvdtrain.cli.tables import Column, print_fitting, print_table


@pytest.mark.parametrize("columns", ["", "0", "20"])
def test_a_pipe_gets_all_columns(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    print_table("", ["name", "value"], [["a" * 40, "1" * 40]])
    print_fitting([Column("name", ["b" * 40]), Column("value", ["2" * 40], priority=1)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["a" * 40, "│", "1" * 40] in lines
    assert ["b" * 40, "2" * 40] in lines
