"""The ring model: exact times give the parameters back, and the rates are those of nccl-tests."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.doctor.allreduce_times import RingModel, bus_bandwidth, fit_ring
from hvdtrain.doctor.units import in_bytes, in_rate, in_seconds, parse_size

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


def test_rates_as_in_nccl_tests() -> None:
    """doc/PERFORMANCE.md of nccl-tests: 4 ranks have a factor of 1.5."""
    assert bus_bandwidth(4, 10**9, 2.0) == 7.5e8
    assert bus_bandwidth(2, 10**9, 2.0) == 5e8


@given(st.integers(2, 64), st.integers(1, 2**30))
def test_bus_bandwidth_is_the_links_where_latency_is_nothing(workers: int, size: int) -> None:
    assert bus_bandwidth(workers, size, RingModel(workers, 0.0, 1e9).seconds(size)) == pytest.approx(1e9)


@pytest.mark.parametrize(
    ("text", "size"),
    [("4", 4), ("4B", 4), ("1KiB", 1024), ("1k", 1024), ("64 MiB", 2**26), ("2G", 2**31), ("1MB", 2**20)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "1.5M", "-4", "4TB", "1KiB2"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@given(st.integers(0, 3), st.integers(1, 1023))
def test_sizes_are_written_as_they_are_read(power: int, count: int) -> None:
    assert parse_size(in_bytes(count * 1024**power)) == count * 1024**power


def test_amounts_for_people() -> None:
    assert [in_seconds(0.0000031), in_seconds(0.0012), in_seconds(12.3)] == ["3.1 µs", "1.2 ms", "12 s"]
    assert [in_rate(25e6), in_rate(1.2e9), in_rate(3e5)] == ["25 MB/s", "1.2 GB/s", "300 kB/s"]
