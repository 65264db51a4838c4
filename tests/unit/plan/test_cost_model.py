"""The formulas of a step: their limits, and what they say of each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.plan.cost_model import (
    Cluster,
    Layers,
    Layout,
    LinkModel,
    Workload,
    hierarchical_seconds,
    joined,
    predicted,
    ring_seconds,
    server_seconds,
)

LINK = LinkModel(1e-5, 1e9)
FAST = LinkModel(1e-6, 1e11)
LINKS = st.builds(LinkModel, st.floats(1e-7, 1e-3), st.floats(1e6, 1e11))
LAYERS = [Layers(1e-3, 2e-3, 4e6, 1e5, 1e4) for _ in range(4)]
WORK = Workload(LAYERS, batch=64, fixed=1e-3, update=2e-3, slots=2.0)
FREE = Cluster(LinkModel(0.0, float("inf")), LinkModel(0.0, float("inf")))


def test_a_ring_by_hand() -> None:
    """Four workers: six messages of a quarter."""
    assert ring_seconds(4e6, 4, LINK) == pytest.approx(6 * (1e-5 + 1e6 / 1e9))
    assert ring_seconds(4e6, 1, LINK) == 0


@given(nbytes=st.floats(1, 1e9), workers=st.integers(2, 10_000), link=LINKS)
def test_a_ring_sends_less_than_twice_the_bytes(nbytes: float, workers: int, link: LinkModel) -> None:
    without_latency = ring_seconds(nbytes, workers, replace(link, latency=0.0))
    assert nbytes / link.bandwidth <= without_latency * (1 + 1e-9)
    assert without_latency < 2 * nbytes / link.bandwidth


@given(workers=st.integers(2, 1000), servers=st.integers(1, 1000))
def test_one_server_is_the_bottleneck(workers: int, servers: int) -> None:
    """By the paper's argument: its link carries the bytes of all workers; as many servers as workers send as a ring."""
    one, several = (server_seconds(1e8, workers, count, LINK) for count in (1, servers))
    assert one >= several
    ring = ring_seconds(1e8, workers, replace(LINK, latency=0.0))
    assert server_seconds(1e8, workers, workers, replace(LINK, latency=0.0)) >= ring


@given(hosts=st.integers(2, 100), per_host=st.integers(2, 16))
def test_rings_within_hosts_spare_the_links_between_them(hosts: int, per_host: int) -> None:
    cluster = Cluster(outer=LINK, inner=FAST, workers_per_host=per_host)
    workers = hosts * per_host
    assert hierarchical_seconds(1e8, workers, cluster) < ring_seconds(1e8, workers, LINK)


def test_without_communication_work_is_divided() -> None:
    alone = predicted(Layout(1), WORK, FREE)
    eight = predicted(Layout(8), WORK, FREE)
    whole = joined(LAYERS)
    assert alone.seconds == pytest.approx(WORK.fixed + WORK.update + 64 * (whole.forward + whole.backward))
    assert eight.seconds == pytest.approx(WORK.fixed + WORK.update + 8 * (whole.forward + whole.backward))
    assert eight.exchange == alone.exchange == eight.idle == 0


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("micro_batches", [1, 4, 16])
def test_a_pipeline_is_idle_for_the_share_of_the_formula(stages: int, micro_batches: int) -> None:
    cuts = tuple(4 // stages * number for number in range(1, stages))
    work = replace(WORK, fixed=0.0, update=0.0)
    took = predicted(Layout(1, stages, micro_batches, cuts=cuts), work, FREE)
    assert took.idle / took.seconds == pytest.approx((stages - 1) / (micro_batches + stages - 1))


def test_memory_of_each_way() -> None:
    """16 MB of weights; Adam keeps two numbers for each."""
    memory = {
        shard: predicted(Layout(4, shard=shard), replace(WORK, batch=4e-9), FREE).memory  # type: ignore[arg-type]
        for shard in ("none", "optimizer", "gradients")
    }
    assert memory["none"] == pytest.approx(16e6 * 4)
    assert memory["optimizer"] == pytest.approx(16e6 * (2 + 2 / 4))
    assert memory["gradients"] == pytest.approx(16e6 * (1 + 1 / 4 + 2 / 4))
    assert predicted(Layout(1, 4, 1, cuts=(1, 2, 3)), replace(WORK, batch=4e-9), FREE).memory == pytest.approx(16e6)


def test_what_a_device_hides_is_no_waiting() -> None:
    busy, apart = (predicted(Layout(8), WORK, Cluster(LINK, LINK, hides=share)) for share in (0.0, 1.0))
    assert busy.exchange > 0
    assert apart.exchange == pytest.approx(max(0.0, busy.exchange - 8 * joined(LAYERS).backward))
