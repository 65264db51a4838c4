"""--log-level says what goes into a rank's file; the console of rank 0 shows warnings in any case."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdtrain.engine import events
from hvdtrain.history.merged_logs import RunLogs
from hvdtrain.run.run_folder import RunFolder, close_logs
from hvdtrain.run.sinks.rank_log import RankLog

LEVELS = ["debug", "info", "warning", "error"]


@pytest.fixture(autouse=True)
def _logger_as_before() -> Iterator[None]:
    own = logging.getLogger("hvdtrain")
    level, propagate = own.level, own.propagate
    yield
    close_logs()
    own.setLevel(level)
    own.propagate = propagate


@pytest.mark.parametrize("least", LEVELS)
def test_the_file_has_what_its_level_says(least: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    RunFolder(tmp_path, 1).open_log(0, least)
    log = logging.getLogger("hvdtrain.run")
    for level in LEVELS:
        log.log(logging.getLevelNamesMapping()[level.upper()], "a message of %s", level)
    lines = [line.text.decode().rpartition(" ")[2] for line in RunLogs(tmp_path).lines(whole=True)]
    assert lines == LEVELS[LEVELS.index(least) :]
    shown = capfd.readouterr().err
    assert shown == "hvdtrain: WARNING: a message of warning\nhvdtrain: ERROR: a message of error\n"


@pytest.mark.parametrize(("least", "steps"), [("debug", 3), ("info", 0)])
def test_debug_has_every_step(least: str, steps: int, tmp_path: Path) -> None:
    RunFolder(tmp_path, 1).open_log(1, least)
    sink = RankLog(1)
    for step in range(3):
        sink(events.StepEnded(0, step))
    sink(events.EpochEnded(0, 3))
    lines = [line.text for line in RunLogs(tmp_path).lines(whole=True)]
    assert len(lines) == steps + 1
    assert lines[-1].endswith(b"EpochEnded(epoch=0, step=3)")
