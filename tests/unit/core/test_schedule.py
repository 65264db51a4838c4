"""The learning rate is a pure function of the step."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.schedule import Schedule, scaled_lr

shapes = st.sampled_from(["constant", "cosine"])
schedules = st.builds(
    Schedule, peak=st.floats(1e-6, 10), total_steps=st.integers(1, 1000), warmup_steps=st.integers(0, 100), shape=shapes
)


@pytest.mark.parametrize(
    ("base", "scaling", "batch", "reference", "expected"),
    [
        (0.1, "none", 8192, 256, 0.1),
        (0.1, "linear", 8192, 256, 3.2),  # Goyal et al. 2017, section 2.1
        (0.1, "linear", 256, 256, 0.1),
        (0.1, "linear", 64, 256, 0.025),
        (0.001, "sqrt", 1024, 256, 0.002),
        (0.001, "sqrt", 64, 256, 0.0005),
    ],
)
def test_scaling(base: float, scaling: str, batch: int, reference: int, expected: float) -> None:
    assert scaled_lr(base, scaling, batch, reference) == pytest.approx(expected)  # type: ignore[arg-type]


def test_warm_up_is_linear_and_its_first_step_moves() -> None:
    schedule = Schedule(peak=0.8, total_steps=100, warmup_steps=4)
    assert [schedule.lr(step) for step in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


def test_cosine_by_hand() -> None:
    schedule = Schedule(peak=2.0, total_steps=6, warmup_steps=2, shape="cosine")
    half = math.sqrt(0.5)
    assert [schedule.lr(step) for step in range(2, 7)] == pytest.approx([2.0, 1 + half, 1.0, 1 - half, 0.0])


@given(schedule=schedules)
def test_cosine_ends_at_zero_and_stays_there(schedule: Schedule) -> None:
    if schedule.shape == "cosine" and schedule.warmup_steps < schedule.total_steps:
        for late in (0, 1, 1000):
            assert schedule.lr(schedule.total_steps + late) == pytest.approx(0.0, abs=1e-12)


@given(schedule=schedules, step=st.integers(0, 2000))
def test_between_zero_and_the_peak(schedule: Schedule, step: int) -> None:
    assert 0 <= schedule.lr(step) <= schedule.peak


@given(schedule=schedules)
def test_every_step_of_the_training_moves(schedule: Schedule) -> None:
    assert all(schedule.lr(step) > 0 for step in range(schedule.total_steps))


@given(schedule=schedules)
def test_up_and_then_never_up_again(schedule: Schedule) -> None:
    rates = [schedule.lr(step) for step in range(schedule.total_steps)]
    turn = min(schedule.warmup_steps, len(rates))
    assert rates[:turn] == sorted(rates[:turn])
    assert rates[turn:] == sorted(rates[turn:], reverse=True)
    if 0 < schedule.warmup_steps <= schedule.total_steps:
        assert rates[turn - 1] == pytest.approx(schedule.peak)


@given(schedule=schedules, steps=st.permutations(range(30)))
def test_the_order_of_asking_does_not_matter(schedule: Schedule, steps: list[int]) -> None:
    in_order = [schedule.lr(step) for step in range(30)]
    assert [schedule.lr(step) for step in steps] == [in_order[step] for step in steps]
