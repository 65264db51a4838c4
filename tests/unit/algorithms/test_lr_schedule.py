"""The learning rate is a pure function of the step."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, MultiStepLR, PolynomialLR, StepLR

from hvdtrain.algorithms.lr_schedule import Schedule, scaled_lr

SHAPES = ("constant", "linear", "polynomial", "cosine", "step")
schedules = st.builds(
    Schedule,
    peak=st.floats(1e-6, 10),
    total_steps=st.integers(1, 1000),
    warmup_steps=st.integers(0, 100),
    shape=st.sampled_from(SHAPES),
    least=st.sampled_from([0.0, 1e-7]),
    power=st.floats(0.5, 3),
    milestones=st.lists(st.integers(1, 1000), unique=True, max_size=4).map(sorted).map(tuple),
    gamma=st.floats(0.01, 0.9),
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


@given(schedule=schedules.filter(lambda s: s.shape in ("linear", "polynomial", "cosine")))
def test_what_falls_ends_at_the_least_rate_and_stays_there(schedule: Schedule) -> None:
    if schedule.warmup_steps < schedule.total_steps:
        for late in (0, 1, 1000):
            assert schedule.lr(schedule.total_steps + late) == pytest.approx(schedule.least, abs=1e-12)


@pytest.mark.parametrize(("least", "warmup"), [(0.0, 0), (0.01, 0), (0.01, 7)])
@pytest.mark.parametrize("shape", SHAPES)
def test_after_the_warm_up_it_is_torch_s(shape: Any, least: float, warmup: int) -> None:
    """Step by step, from the end of the warm-up on; torch's LinearLR falls to 0 only."""
    steps, marks = 40, (17, 29)
    schedule = Schedule(0.3, warmup + steps, warmup, shape, least, 1.7, tuple(warmup + mark for mark in marks), 0.2)
    optimizer = torch.optim.SGD(
        [torch.nn.Parameter(torch.zeros(1))], lr=0.3 - least * (shape in ("linear", "polynomial"))
    )
    scheduler: Any = {
        "constant": lambda: ConstantLR(optimizer, factor=1.0),
        "linear": lambda: LinearLR(optimizer, 1.0, 0.0, steps),
        "polynomial": lambda: PolynomialLR(optimizer, steps, 1.7),
        "cosine": lambda: CosineAnnealingLR(optimizer, steps, least),
        "step": lambda: MultiStepLR(optimizer, list(marks), 0.2),
    }[shape]()
    for step in range(steps):
        floor = least * (shape in ("linear", "polynomial"))
        assert schedule.lr(warmup + step) == pytest.approx(scheduler.get_last_lr()[0] + floor, rel=1e-6)
        optimizer.step()
        scheduler.step()


def test_equal_milestones_are_torch_s_steps() -> None:
    schedule = Schedule(0.1, 100, 0, "step", milestones=(30, 60, 90))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = StepLR(optimizer, 30)
    for step in range(100):
        assert schedule.lr(step) == pytest.approx(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Schedule(0.1, 9), "constant"),
        (Schedule(0.1, 9, shape="cosine"), "cosine down to 0"),
        (Schedule(0.1, 9, shape="linear", least=1e-4), "linear down to 0.0001"),
        (Schedule(0.1, 9, shape="polynomial", power=0.9), "polynomial of power 0.9 down to 0"),
        (Schedule(0.1, 9, shape="step", milestones=(3, 6)), "step × 0.1 from step 3, 6"),
    ],
)
def test_what_is_applied_is_said(schedule: Schedule, words: str) -> None:
    assert schedule.describe() == words


@given(schedule=schedules, step=st.integers(0, 2000))
def test_between_zero_and_the_peak(schedule: Schedule, step: int) -> None:
    assert 0 <= schedule.lr(step) <= schedule.peak * (1 + 1e-12)


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
