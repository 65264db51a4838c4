"""What stands for many ranks counts what a rank receives, and the page says how costs grow."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.commands import REPOSITORY, printed_json
from benchmarks.scale.engine_costs import engine_costs, failure_costs
from benchmarks.scale.other_audits import OtherAudits
from benchmarks.scale.report import COSTS, exponent, markdown
from benchmarks.scale.stand_in import RANKS_PER_HOST, StandIn, topology_of
from benchmarks.scale.worker import spread
from data_sharding import Catalog, CoverageAudit, LoadedBatch
from hvdtrain.audit.ledger import CoverageLedger
from hvdtrain.history.heartbeats import read_heartbeats


def test_a_stand_in_counts_what_a_rank_receives() -> None:
    comm = StandIn(topology_of(100))
    assert comm.allgather(np.ones((1, 3)), "rows").shape == (100, 3)
    assert comm.allreduce(np.ones(4, np.int64), "sum").tolist() == [100] * 4
    assert comm.allreduce(np.ones(4), "max", "max").tolist() == [1] * 4
    assert comm.received == {"rows": 2400, "sum": 64, "max": 64}
    assert comm.take_received() == 2528
    assert comm.take_received() == 0


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_exponent_is_that_of_the_power_of_n(power: float) -> None:
    assert exponent({size: 3.0 * size**power for size in (8, 64, 512, 4096)}) == pytest.approx(power, abs=1e-9)
    assert math.isnan(exponent({8: 1.0, 64: 2.0}))


def test_the_page_says_which_goals_are_reached() -> None:
    machine = {"cpu": "c", "cores": 2, "memory_gib": 1, "kernel": "6", "python": "3", "commit": "x", "load": [0.0]}
    figures = {"seconds": 1e-4, "received": 9_000, "bytes": 5_000, "memory": 2e8}
    costs = {str(size): {cost.of: figures for cost in COSTS} for size in (8, 64, 10_000)}
    result = {"date": "2026-01-01T00:00:00", "machine": {**machine, "load_at_end": [0.0]}, "versions": {}}
    page = markdown({**result, "before": None, "costs": {"now": costs}})
    assert "a reading, time of a rank: 0.1 ms with 10,000 workers, goal 1 ms: reached." in page
    assert "a line of metrics, bytes: 5 KB with 10,000 workers, goal 4.1 KB: **not reached**." in page


def test_the_worker_leaves_a_run_folder_and_its_figures(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "benchmarks.scale.worker", "64", str(tmp_path / "run")]
    found = printed_json(argv, "reading", {**os.environ, "PYTHONPATH": str(REPOSITORY)}, 100, tmp_path)
    assert found["line"]["bytes"] <= 4096
    assert 16_000 <= found["result"]["bytes"] <= 200_000, "a real one has the times of all parts of a step"
    measured = {f"{of} {figure}" for of, figures in found.items() for figure in figures}
    assert measured <= {f"{cost.of} {cost.figure}" for cost in COSTS}, "measured, and not on the page"
    assert len(list((tmp_path / "run" / "heartbeats").iterdir())) == 64 // RANKS_PER_HOST
    assert len(read_heartbeats(tmp_path / "run")) == 64


def test_what_ranks_agree_on_hardly_grows_with_their_number(tmp_path: Path) -> None:
    """Between 64 and 10,000 ranks."""
    few, many = (
        engine_costs(StandIn(topology_of(size), spread), [f"node-{rank // 8}" for rank in range(size)], tmp_path, True)
        for size in (64, 10_000)
    )
    assert few["step"]["received"] == pytest.approx(80, abs=1)
    assert many["step"]["received"] == pytest.approx(80, abs=1)
    assert many["checkpoint"]["received"] < 2 * few["checkpoint"]["received"] < 20_000
    assert many["stop"]["received"] < 10_000
    failure = failure_costs(StandIn(topology_of(10_000), spread), ["node"] * 10_000)["failure"]
    assert failure["received"] < 10_000


@pytest.mark.parametrize(("size", "name"), [(8, "hvdtrain.audit.counts.data"), (512, "hvdtrain.audit.words")])
def test_the_audit_of_made_up_ranks_has_all_that_they_used(size: int, name: str, tmp_path: Path) -> None:
    """Whichever way it comes to rank 0."""
    others = OtherAudits(size, 100_000, 16)
    comm = StandIn(topology_of(size), others.gathered, others.summed)
    ledger = CoverageLedger(comm, tmp_path, Catalog.of(np.arange(100_000)), bytes, others.steps_per_epoch)
    ledger.start(0)
    for ids in others.ids[:, 0]:
        ledger.add(LoadedBatch(0, ids, np.ones(16, np.float32), {}, 16.0 * size))
    comm.take_received()
    ledger.end_segment(others.steps)()
    assert name in comm.received
    (segment,) = tmp_path.glob("segment_*.bin")
    audit = CoverageAudit.from_bytes(segment.read_bytes())
    assert np.array_equal(np.flatnonzero(audit.to_array() == 1), np.sort(others.ids.ravel()))
