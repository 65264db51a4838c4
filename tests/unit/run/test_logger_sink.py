"""A logger that is slow, hangs or fails makes no training wait, and what it was not given is told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from hvdtrain.engine import events
from hvdtrain.measured import Seconds
from hvdtrain.run.sinks import logger_sink
from hvdtrain.run.sinks.logger_api import MetricsWriter, Outcome, Point
from hvdtrain.run.sinks.logger_sink import Delivery, LoggerSink

PATIENCE = 60.0  # for what comes at once


class Kept:
    """Keeps what it is given, and waits in `write` until `may_go` is set."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.entered, self.may_go = threading.Event(), threading.Event()
        self.outcome: Outcome | None = None

    def write(self, points: Sequence[Point]) -> None:
        self.entered.set()
        assert self.may_go.wait(PATIENCE)
        self.points += points

    def close(self, outcome: Outcome) -> None:
        self.outcome = outcome


class Broken(Kept):
    """Raises in one of its methods."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self._fail("open")

    def write(self, points: Sequence[Point]) -> None:  # noqa: ARG002
        self._fail("write")

    def close(self, outcome: Outcome) -> None:  # noqa: ARG002
        self._fail("close")

    def _fail(self, where: str) -> None:
        if where == self.where:
            raise OSError("no route to host")


@pytest.fixture
def kept() -> Iterator[Kept]:
    logger = Kept()
    yield logger
    logger.may_go.set()  # so that no thread is left


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    monkeypatch.setattr(logging.getLogger("hvdtrain"), "propagate", True)
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def point(step: int) -> Point:
    return Point(step, 0.0, {"train/loss": float(step)})


def logged(step: int) -> events.Logged:
    return events.Logged(
        epoch=0, step=step, lr=0.1, samples=1, samples_per_second=1.0, values={"loss": 0.5}, rank_seconds=(Seconds(),)
    )


def test_all_points_arrive_in_their_order_and_then_the_end(kept: Kept, warnings: Callable[[], list[str]]) -> None:
    kept.may_go.set()
    delivery = Delivery("x", lambda: kept, seconds=0.0)
    for step in range(1000):
        delivery.put(point(step))
    delivery.close("stopped", PATIENCE)
    assert kept.points == [point(step) for step in range(1000)]
    assert kept.outcome == "stopped"
    assert warnings() == []


def test_a_logger_that_hangs_is_given_what_it_can_hold_and_left_alone(
    kept: Kept, warnings: Callable[[], list[str]]
) -> None:
    delivery = Delivery("x", lambda: kept, capacity=3, seconds=0.0)
    delivery.put(point(0))
    assert kept.entered.wait(PATIENCE)
    for step in range(1, 6):
        delivery.put(point(step))
    assert warnings() == ["x does not take metrics as fast as they come, so it will not have all of them"]
    delivery.close("finished", 0.0)
    assert warnings()[1:] == ["x was not given 6 points of metrics; metrics.jsonl has them"]
    delivery.put(point(6))
    delivery.close("finished", 0.0)
    assert len(warnings()) == 2


@pytest.mark.parametrize("where", ["open", "write", "close"])
def test_a_logger_that_fails_is_told_once(where: str, warnings: Callable[[], list[str]]) -> None:
    delivery = Delivery("x", lambda: Broken(where))
    for step in range(3):
        delivery.put(point(step))
    delivery.close("finished", PATIENCE)
    delivery.put(point(3))
    assert warnings() == ["x failed, and training goes on without it: OSError: no route to host"]


@pytest.mark.parametrize(
    ("last", "outcome"),
    [
        (events.RunEnded(2, 2, True), "finished"),
        (events.RunEnded(2, 2, False), "stopped"),
        (events.RunFailed(2, RuntimeError()), "failed"),
    ],
)
def test_a_sink_of_a_logger_has_all_metrics_and_how_the_run_ended(
    last: events.Event, outcome: Outcome, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(logger_sink._DEADLINES, outcome, PATIENCE)
    kept.may_go.set()
    begun = []

    def opened(step: int) -> MetricsWriter:
        begun.append(step)
        return kept

    sink = LoggerSink("x", opened)
    evaluated = events.Evaluated(0, 2, 9, 0.25, {"accuracy": 0.75})
    for event in (events.RunStarted(1, 2, 2, 1), events.StepEnded(0, 2), logged(2), evaluated, last):
        sink(event)
    sink.close()
    assert begun == [1]
    assert kept.outcome == outcome
    training, validation = kept.points
    assert (training.step, training.values["train/loss"], training.values["lr"]) == (2, 0.5, 0.1)
    assert (validation.step, validation.values) == (2, {"validation/accuracy": 0.75, "seconds/validation": 0.25})


def test_of_many_points_of_training_in_a_second_a_logger_gets_the_first_and_the_last_before_another_event(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger_sink, "_SECONDS", 3600.0)
    monkeypatch.setitem(logger_sink._DEADLINES, "finished", PATIENCE)
    kept.may_go.set()
    sink = LoggerSink("x", lambda _: kept)
    sink(events.RunStarted(0, 9, 9, 1))
    for step in range(1, 7):
        sink(events.StepEnded(0, step))
        sink(logged(step))
    for event in (events.EpochEnded(0, 6), events.EpochStarted(1), logged(7), events.RunEnded(7, 7, True)):
        sink(event)
    assert [point.step for point in kept.points] == [1, 6, 7]


def test_a_run_with_a_logger_that_hangs_comes_to_its_end(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], list[str]]
) -> None:
    monkeypatch.setitem(logger_sink._DEADLINES, "finished", 0.0)
    sink = LoggerSink("x", lambda _: kept)
    for event in (events.RunStarted(0, 2, 2, 1), logged(1), logged(2), events.RunEnded(2, 2, True)):
        sink(event)
    assert warnings() == ["x was not given 2 points of metrics; metrics.jsonl has them"]


def test_a_sink_that_is_closed_before_the_run_starts_opens_nothing(kept: Kept) -> None:
    sink = LoggerSink("x", lambda _: kept)
    sink(events.RunFailed(0, RuntimeError()))
    sink.close()
    assert kept.outcome is None


def test_a_validation_that_the_logger_has_is_not_given_again_by_a_start_that_trains_nothing(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(logger_sink._DEADLINES, "finished", PATIENCE)
    kept.may_go.set()
    sink = LoggerSink("x", lambda _: kept, validated=2)
    told = [events.Evaluated(0, step, 9, 0.25, {"accuracy": 0.75}) for step in (2, 3)]
    for event in (events.RunStarted(2, 3, 3, 1), told[0], logged(3), told[1], events.RunEnded(3, 3, True)):
        sink(event)
    assert [point.step for point in kept.points] == [3, 3]
