"""The parts of a step: what is measured, when it is told, and that none of it grows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hvdtrain.adapters import step_timer as laps_module
from hvdtrain.adapters.step_timer import (
    ALLREDUCE,
    ALLREDUCE_HIDDEN,
    BACKWARD,
    FORWARD,
    HOST_TO_DEVICE,
    OPTIMIZER,
    PARTS,
    StepTimer,
)
from hvdtrain.algorithms import quantile_sketch

ZERO = [0.0] * len(PARTS)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock shows; tests set it."""
    now = [100.0]
    monkeypatch.setattr(laps_module.time, "perf_counter", lambda: now[0])
    return now


def step(timer: StepTimer, clock: list[float], micro_batches: int = 1, sent: float | None = 0.25) -> None:
    """A step of known times. Args: `sent`: seconds before the end of the last backward pass; None: nothing is."""
    for number in range(micro_batches):
        clock[0] += 50.0  # belongs to no part
        timer.begin()
        for part, seconds in ((HOST_TO_DEVICE, 0.125), (FORWARD, 1.0)):
            clock[0] += seconds
            timer.end(part)
        clock[0] += 2.0
        if sent is not None and number + 1 == micro_batches:
            clock[0] -= sent
            timer.sending()
            clock[0] += sent / 2
            timer.sending()  # a second bucket
            clock[0] += sent / 2
        timer.end(BACKWARD)
    clock[0] += 0.5
    timer.end_wait()
    clock[0] += 0.0625
    timer.end(OPTIMIZER)
    timer.end_step()


def named(timer: StepTimer) -> dict[str, float]:
    return dict(zip(PARTS, timer.take(), strict=True))


def test_each_part_has_its_time_and_a_reading_begins_again(clock: list[float]) -> None:
    timer = StepTimer()
    step(timer, clock)
    step(timer, clock, micro_batches=3)
    assert named(timer) == {
        "host_to_device": 4 * 0.125,
        "forward": 4.0,
        "backward": 8.0,
        "allreduce": 1.0,
        "optimizer": 0.125,
        "allreduce_hidden": 0.5,
    }
    assert timer.take() == ZERO
    step(timer, clock)
    assert timer.take()[FORWARD] == 1.0


def test_what_is_sent_in_the_wait_itself_is_not_hidden(clock: list[float]) -> None:
    timer = StepTimer()
    timer.begin()
    timer.end(BACKWARD)
    clock[0] += 1.0
    timer.sending()
    clock[0] += 1.0
    timer.end_wait()
    timer.end_step()
    assert (timer.take()[ALLREDUCE_HIDDEN], timer._own[ALLREDUCE]) == (0.0, 0.0)
    step(timer, clock, sent=None)
    assert timer.take()[ALLREDUCE_HIDDEN] == 0.0


def test_sketches_have_every_step_and_sums_none_twice_however_they_are_folded(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantile_sketch, "FOLDED", 4)
    for readings in ([11], [3, 1, 1, 6], [4, 4, 3], [1] * 11):
        timer = StepTimer()
        told = []
        for steps in readings:
            for _ in range(steps):
                step(timer, clock)
                assert len(timer._steps._rows) < 4
            told.append(timer.take()[BACKWARD])
        assert told == [2.0 * steps for steps in readings]
        sketches = timer.take_sketches()
        assert {sketch.count for sketch in sketches.values()} == {11}
        assert sketches["forward"].summary().max == 1.0
        assert timer.take_sketches() == {}


def test_sums_survive_a_taking_of_the_sketches(clock: list[float]) -> None:
    timer = StepTimer()
    step(timer, clock)
    timer.take_sketches()
    step(timer, clock)
    assert timer.take()[FORWARD] == 2.0


def test_a_trace_is_told_each_part(clock: list[float]) -> None:
    timer = StepTimer()
    told: list[Sequence[object]] = []
    step(timer, clock)
    timer.tell = lambda *span: told.append(span)
    step(timer, clock)
    timer.tell = None
    step(timer, clock)
    assert [name for name, _, _ in told] == ["host_to_device", "forward", "backward", "allreduce", "optimizer"]
    ends = [end for _, _, end in told]
    assert [begin for _, begin, _ in told[1:]] == ends[:-1]
    assert timer.take()[ALLREDUCE] == 1.5
