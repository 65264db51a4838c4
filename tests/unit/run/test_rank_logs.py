"""--log-level says what goes into a rank's file; the console of rank 0 shows warnings in any case."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdtrain.algorithms.early_stopping import Best
from hvdtrain.engine import events
from hvdtrain.errors import UsageError
from hvdtrain.history.rank_logs import RunLogs
from hvdtrain.run.run_folder import RunFolder, close_logs
from hvdtrain.run.sinks.rank_log import RankLog, text_of

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


_RANK = """
import logging, sys
from pathlib import Path
from hvdtrain.run.run_folder import RunFolder
rank = int(sys.argv[2])
RunFolder(Path(sys.argv[1]), 1).open_log(rank, host="node a")
for number in range(100):
    logging.getLogger("hvdtrain.run").info("record %d\\n%s", number, "\\n".join([f"of {rank}" + "x" * 99] * 50))
"""


def test_ranks_of_a_host_share_a_file_in_which_each_record_is_whole(tmp_path: Path) -> None:
    ranks = [3, 4, 5]
    processes = [subprocess.Popen([sys.executable, "-c", _RANK, str(tmp_path), str(rank)]) for rank in ranks]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    (path,) = (tmp_path / "logs").iterdir()
    assert path.name.startswith("host_node-a-")
    logs = RunLogs(tmp_path)
    assert (logs.ranks(), logs.has_hosts()) == ([], True)
    lines = list(logs.lines(whole=True))
    assert len(lines) == 3 * 100 * 51
    for rank in ranks:
        of_rank = [line for line in lines if line.rank == rank]
        begins = [line.text.partition(b"hvdtrain.run: ")[2] for line in of_rank if line.begins]
        assert begins == [b"record %d" % number for number in range(100)]
        assert {line.text for line in of_rank if not line.begins} == {b"of %d" % rank + b"x" * 99}
    assert b" INFO hvdtrain.run: record 0" in lines[0].text
    assert {line.rank for line in RunLogs(tmp_path, [4]).lines(whole=True)} == {4}


@pytest.mark.parametrize(("least", "steps"), [("debug", 3), ("info", 0)])
def test_debug_has_every_step(least: str, steps: int, tmp_path: Path) -> None:
    RunFolder(tmp_path, 1).open_log(1, least)
    sink = RankLog(1)
    for step in range(3):
        sink(events.StepEnded(0, step))
    sink(events.EpochEnded(0, 3))
    lines = [line.text for line in RunLogs(tmp_path).lines(whole=True)]
    assert len(lines) == steps + 1
    assert lines[-1].endswith(b"epoch ended: epoch 1, step 3")


def test_events_are_told_in_words() -> None:
    best = Best("loss", 0.123456789, step=30, epoch=0)
    evaluated = events.Evaluated(1, 60, 359, 0.0222751, {"accuracy": 0.987654321, "loss": 0.2}, best, (0.5, 0.25))
    failed = events.RunFailed(7, UsageError("There is no x.", "It is needed.", "add one."))
    assert text_of(evaluated) == (
        "evaluated: epoch 2, step 60, samples 359, seconds 0.02228, values (accuracy 0.9877, loss 0.2), "
        "best (metric loss, value 0.1235, step 30, epoch 1), rank seconds (0.5, 0.25)"
    )
    assert text_of(failed) == "run failed: step 7, error UsageError: There is no x. It is needed. HINT: add one."
    assert text_of(events.StoppedEarly(2, 90, "loss", 3, 0.0)).startswith(
        "stopped early: epoch 3, step 90, metric loss"
    )
