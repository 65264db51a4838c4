"""Seconds by name: spans, what was measured elsewhere, and readings that begin again."""

from __future__ import annotations

import pytest

from hvdtrain import stopwatch
from hvdtrain.stopwatch import Stopwatch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock shows; tests set it."""
    now = [100.0]
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: now[0])
    return now


def test_spans_of_a_name_add_up_and_a_reading_begins_again(clock: list[float]) -> None:
    watch = Stopwatch()
    for seconds in (1.0, 0.5):
        with watch.span("data") as span:
            clock[0] += seconds
        clock[0] += 7
        assert span.seconds == seconds
    watch.add("data", 0.25)
    watch.add("checkpoint", 3.0)
    assert watch.take("data") == 1.75
    assert watch.take("data") == 0.0
    assert watch.take("checkpoint") == 3.0


def test_a_span_that_raises_counts(clock: list[float]) -> None:
    watch = Stopwatch()

    def work() -> None:
        with watch.span("data"):
            clock[0] += 2
            raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        work()
    assert watch.take("data") == 2.0
