"""Simulated jobs: all of their time is accounted for, and what is known in closed form comes out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.algorithms.checkpoint_interval import young_daly
from hvdtrain.plan.cluster_simulation import Disturbances, simulated

CALM = Disturbances(jitter=0.0, mtbf=math.inf, save=0.0)


def test_undisturbed_it_is_steps_and_nothing_else() -> None:
    job = simulated(0.3, 0.1, 1000, 50, CALM)
    assert job.seconds == pytest.approx(50 * 0.4)
    assert (job.failures, job.saving, job.goodput) == (0, 0.0, pytest.approx(1.0))


def test_a_job_that_never_gets_on_ends() -> None:
    """Its steps take much longer than it runs without a failure."""
    job = simulated(0.3, 0.1, 64, 100_000, Disturbances(jitter=2.0, mtbf=1e-6, save=1e-6))
    assert job.steps == 0
    job = simulated(1e-9, 1e-9, 1000, 10**6, Disturbances(jitter=2.0, mtbf=1e-3, save=1e9))
    assert job.steps < 10**6


@given(
    workers=st.sampled_from([1, 8, 1000, 10_000]),
    jitter=st.sampled_from([0.0, 0.1]),
    mtbf=st.sampled_from([2_000.0, 100_000.0]),
    seed=st.integers(0, 20),
)
def test_every_second_is_accounted_for(workers: int, jitter: float, mtbf: float, seed: int) -> None:
    what = Disturbances(jitter, mtbf, restart=5.0, save=0.5)
    job = simulated(0.8, 0.2, workers, 3000, what, seed)
    assert job.steps == 3000
    lost = job.stragglers + job.saving + job.repeated + job.restarting
    assert job.seconds == pytest.approx(3000 * 1.0 + lost)
    assert job.restarting == pytest.approx(5.0 * job.failures)


@pytest.mark.parametrize("workers", [1, 10, 1000])
def test_the_slowest_of_many_workers(workers: int) -> None:
    job = simulated(1.0, 0.0, workers, 20_000, Disturbances(0.1, math.inf, save=0.0))
    drawn = np.random.default_rng(1).lognormal(0.0, 0.1, (2000, workers)).max(axis=1)
    assert job.seconds / 20_000 == pytest.approx(float(drawn.mean()), rel=0.01)


def test_failures_come_as_often_as_they_are_said_to() -> None:
    """And cost what Young and Daly's interval is chosen for: about as much as saving does."""
    what = Disturbances(0.0, mtbf=100.0, restart=0.0, save=2.0)
    job = simulated(1.0, 0.0, 100, 2_000_000, what)
    assert job.failures == pytest.approx(job.seconds / 3600, rel=0.1)
    assert job.interval == pytest.approx(young_daly(2.0, 3600.0))
    assert job.repeated == pytest.approx(job.saving, rel=0.15)
