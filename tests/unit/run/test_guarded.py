"""A sink that fails ends alone: one warning, it is closed, and training and the other sinks go on."""

from __future__ import annotations

import errno
import logging
from contextlib import ExitStack
from pathlib import Path

import pytest

from hvdtrain.config.train_config import TrainConfig
from hvdtrain.engine import events
from hvdtrain.engine.events import Event
from hvdtrain.errors import HvdtrainError
from hvdtrain.measured import Seconds
from hvdtrain.run.run_folder import RunFolder
from hvdtrain.run.sinks.metrics_file import MetricsFile
from hvdtrain.run.sinks.sink import SinkContext
from hvdtrain.run.sinks.sink_registry import Guarded, open_sinks
from hvdtrain.topology import Topology

EVENT = events.EpochStarted(0)


@pytest.fixture(autouse=True)
def _propagates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("hvdtrain"), "propagate", True)


def refuse(_: Event) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_after_a_failure_a_sink_is_closed_and_gets_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    got, closed, stack = [], [], ExitStack()
    stack.callback(lambda: closed.append(True))

    def once(event: Event) -> None:
        got.append(event)
        refuse(event)

    sink = Guarded("table", once, stack)
    for _ in range(3):
        sink(EVENT)
    sink.close()
    assert got == [EVENT]
    assert closed == [True]
    (record,) = caplog.records
    told = "table failed, and training goes on without it: OSError: [Errno 28] No space left on device"
    assert record.getMessage() == told


@pytest.mark.parametrize("fails_before", [False, True])
def test_a_sink_that_cannot_be_closed_ends_nothing(fails_before: bool, caplog: pytest.LogCaptureFixture) -> None:
    stack = ExitStack()
    stack.callback(lambda: refuse(EVENT))
    sink = Guarded("table", refuse if fails_before else lambda _: None, stack)
    sink(EVENT)
    sink.close()
    assert len(caplog.records) == 1


def test_what_is_no_failure_of_the_sink_passes() -> None:
    def interrupt(_: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Guarded("table", interrupt, ExitStack())(EVENT)


def test_without_metrics_jsonl_a_run_does_not_go_on_and_without_the_table_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logged = events.Logged(
        epoch=0, step=1, lr=0.1, samples=1, samples_per_second=1.0, values={"loss": 0.5}, rank_seconds=(Seconds(),)
    )
    (tmp_path / "metrics.csv").mkdir()
    context = SinkContext(TrainConfig(progress="none", loggers="none"), RunFolder(tmp_path, 1), Topology.single())
    with ExitStack() as stack:
        sinks = list(open_sinks(context, stack))
        for sink in sinks:
            sink(logged)
        assert [r.getMessage().split(",")[0] for r in caplog.records if r.levelname == "WARNING"] == [
            "metrics_table failed"
        ]
        (metrics,) = (sink for sink in sinks if isinstance(sink, MetricsFile))
        monkeypatch.setattr(metrics, "_file", open("/dev/full", "w"))  # noqa: SIM115
        with pytest.raises(HvdtrainError, match=r"A line of metrics\.jsonl could not be written"):
            metrics(logged)
