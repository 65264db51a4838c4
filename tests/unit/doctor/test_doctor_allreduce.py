"""The measurement takes about the time it was given on any network, and says what it found, not more."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.ranks import ThreadCommunicator, all_well, run_on_ranks

from hvdtrain.doctor.allreduce_times import SIZES, RingModel, fit_ring, measure
from hvdtrain.doctor.measured_allreduce import allreduce_findings
from hvdtrain.units import in_seconds


class Network:
    """Stands for two ranks' links: an operation takes the ring's time, and on rank 0 somewhat less."""

    kind = "pretended"

    def __init__(self, model: RingModel, rank: int) -> None:
        self._model, self._rank = model, rank
        self.spent = self.longest = 0.0

    def prepare(self, elements: int) -> Callable[[], None]:
        seconds = self._model.seconds(4 * elements) * (1 - 0.05 * (1 - self._rank))

        def run() -> None:
            time.sleep(seconds)
            self.spent += seconds
            self.longest = max(self.longest, seconds)

        return run


def measured(model: RingModel, seconds: float) -> tuple[list[Any], Network]:
    """Both ranks' reports, and rank 1's network."""
    networks = [Network(model, rank) for rank in range(2)]

    def work(comm: ThreadCommunicator) -> Any:
        return measure(comm, networks[comm.topology.rank], "torch", SIZES, seconds)

    return all_well(run_on_ranks(2, work)), networks[1]


@pytest.mark.parametrize("bandwidth", [1e10, 25e6, 250e3])
def test_it_takes_about_the_time_it_was_given(bandwidth: float) -> None:
    """250 kB/s is a link of 2 Mbit/s: 256 KiB alone take a second there."""
    reports, network = measured(RingModel(2, 1e-3, bandwidth), 1.0)
    assert network.spent <= 1.0 + 3 * network.longest
    assert reports[0] == reports[1]
    sizes = [point["bytes"] for point in reports[0]["sizes"]]
    assert sizes == list(SIZES[: len(sizes)])
    assert len(sizes) >= 2


def test_it_tells_the_time_of_the_slower_rank() -> None:
    model = RingModel(2, 1e-3, 100e6)
    (report, _), _ = measured(model, 1.0)
    assert report["transport"] == "pretended"
    for point in report["sizes"]:
        assert point["seconds"] >= model.seconds(point["bytes"])


def report_of(bandwidth: float, *sizes: int) -> dict[str, Any]:
    model = RingModel(4, 1e-4, bandwidth)
    points = [{"bytes": size, "seconds": model.seconds(size)} for size in sizes]
    fitted = {"latency": model.latency, "bandwidth": bandwidth, "deviation": 0.0}
    return {"workers": 4, "transport": "gloo", "sizes": points, "model": fitted}


def test_what_the_doctor_says_of_it() -> None:
    (good,) = allreduce_findings(report_of(100e6, 4, 2**26), 110e6)
    assert good.status == "ok"
    # 2 (n-1)/n · 100 MB / 100 MB/s
    assert good.fact.startswith("4 workers, gloo: 100 MB/s a link and 100 µs a step")
    assert good.fact.endswith("100 MB of gradients 1.5 s")
    assert [f.status for f in allreduce_findings(report_of(100e6, 4, 2**26), None)] == ["ok"]
    (wasteful,) = allreduce_findings(report_of(100e6, 4, 2**26), 1e9)
    assert wasteful.status == "warn"
    assert "1 GB/s" in wasteful.hint
    (unsure,) = allreduce_findings(report_of(100e6, 4, 1024), 110e6)
    assert unsure.status == "warn"
    assert "too few sizes" in unsure.fact
    assert "more --seconds" in unsure.hint
    (asked,) = allreduce_findings(report_of(100e6, 4, 1024), 110e6, "4B,1KiB")
    assert asked.hint.startswith("leave out --sizes")


def judged(times: dict[int, float]) -> tuple[str, str]:
    """Status and fact of what two workers measured."""
    model = fit_ring(2, times)
    report = report_of(model.bandwidth) | {
        "workers": 2,
        "sizes": [{"bytes": size, "seconds": seconds} for size, seconds in times.items()],
        "model": {"latency": model.latency, "bandwidth": model.bandwidth, "deviation": model.deviation},
    }
    (finding,) = allreduce_findings(report, None)
    assert bool(finding.hint) == (finding.status != "ok")
    return finding.status, finding.fact


def test_a_bad_fit_is_a_warning_and_promises_nothing_faster_than_was_measured() -> None:
    """Times of two workers on two cores that others were using."""
    calm = {4: 1e-3, 2**20: 2e-3, 2**22: 5e-3, 2**24: 17e-3}
    status, fact = judged(calm)
    assert status == "ok", fact
    assert ", within " in fact
    status, fact = judged(calm | {2**24: 534e-3})
    assert status == "warn"
    assert "16 MiB take 534 ms" in fact
    assert "within" not in fact
    assert float(fact.removesuffix(" ms").rpartition(" ")[2]) > 534 or fact.endswith(" s")


@given(st.lists(st.floats(1e-3, 0.9), min_size=len(SIZES), max_size=len(SIZES)))
def test_gradients_never_take_less_than_what_is_smaller(seconds: list[float]) -> None:
    """The figure may be rounded: whatever is smaller took no longer, by the same rounding."""
    times = dict(zip(SIZES, seconds, strict=True))
    if fit_ring(2, times).bandwidth == float("inf"):
        return  # is said to be too little to tell
    _, fact = judged(times)
    number, unit = fact.rsplit(" ", 2)[1:]
    told = float(number) * {"s": 1.0, "ms": 1e-3}[unit]
    longest, long_unit = in_seconds(max(seconds)).split()
    assert told >= float(longest) * {"s": 1.0, "ms": 1e-3}[long_unit]
