"""The ring model: exact times give the parameters back, and the rates are those of nccl-tests."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.doctor.allreduce_times import DIRECT_BYTES, RingModel, bus_bandwidth, fit_ring, ring_times
from hvdtrain.horovod_wheel.source import series

SIZES = [4, 1024, 2**14, 2**18, 2**20, 2**22, 2**24, 2**26]


@given(st.integers(2, 512), st.floats(1e-6, 1e-2), st.floats(1e6, 1e11))
def test_exact_times_give_latency_and_bandwidth_back(workers: int, latency: float, bandwidth: float) -> None:
    true = RingModel(workers, latency, bandwidth)
    fitted = fit_ring(workers, {size: true.seconds(size) for size in SIZES})
    assert fitted.latency == pytest.approx(latency, rel=1e-6)
    # Where the largest message's transfer is lost in the latency, no fit can see the bandwidth.
    if 2**26 / (workers * bandwidth) > 1e-3 * latency:
        assert fitted.bandwidth == pytest.approx(bandwidth, rel=1e-3)
    assert fitted.deviation < 1e-6


@given(st.integers(2, 64), st.lists(st.floats(1e-6, 10), min_size=8, max_size=8))
def test_any_times_give_a_model_that_is_possible(workers: int, seconds: list[float]) -> None:
    fitted = fit_ring(workers, dict(zip(SIZES, seconds, strict=True)))
    assert fitted.latency >= 0
    assert fitted.bandwidth > 0
    assert all(math.isfinite(fitted.seconds(size)) for size in SIZES)


@pytest.mark.parametrize(("workers", "times"), [(1, {4: 1.0, 8: 2.0}), (2, {4: 1.0}), (2, {})])
def test_too_little_is_refused(workers: int, times: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="two"):
        fit_ring(workers, times)


@given(st.integers(2, 64), st.sampled_from(["gloo", "mpi"]))
def test_what_goes_around_no_ring_is_not_fitted(workers: int, transport: str) -> None:
    points = [{"bytes": size, "seconds": 1e-3} for size in SIZES]
    fitted = set(ring_times(workers, transport, points))
    assert fitted == {size for size in SIZES if transport == "mpi" or size * (workers - 1) > DIRECT_BYTES}
    assert set(ring_times(workers, transport, points[:4])) == set(SIZES[:4])  # on a slow link


def test_gloo_sends_directly_what_is_said_here() -> None:
    (patch,) = (patch for patch in series() if "gloo-direct-sums" in patch.name)
    assert f"kMaxDirectBytes = {DIRECT_BYTES // 1024} * 1024;" in patch.read_text()


def test_rates_as_in_nccl_tests() -> None:
    """doc/PERFORMANCE.md of nccl-tests: 4 ranks have a factor of 1.5."""
    assert bus_bandwidth(4, 10**9, 2.0) == 7.5e8
    assert bus_bandwidth(2, 10**9, 2.0) == 5e8


@given(st.integers(2, 64), st.integers(1, 2**30))
def test_bus_bandwidth_is_the_links_where_latency_is_nothing(workers: int, size: int) -> None:
    assert bus_bandwidth(workers, size, RingModel(workers, 0.0, 1e9).seconds(size)) == pytest.approx(1e9)
