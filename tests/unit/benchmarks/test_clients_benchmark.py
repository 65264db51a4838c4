"""What stands for many clients speaks the protocols of real servers, and the page says what follows for 10,000."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.clients.__main__ import _served
from benchmarks.clients.report import COSTS, markdown, predicted
from benchmarks.clients.supervised import supervised
from benchmarks.commands import REPOSITORY

ENVIRON = {**os.environ, "PYTHONPATH": str(REPOSITORY)}

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("what", ["store", "mesh", "meeting"])
def test_a_server_serves_the_clients(what: str, tmp_path: Path) -> None:
    found = _served(what, 12, ENVIRON, tmp_path)
    assert found["bytes"] == 12 * found["received"] > 0
    assert found["seconds"] > 0
    assert found["memory"] > 1e6


def test_what_a_worker_receives_when_all_meet_does_not_grow(tmp_path: Path) -> None:
    few, many = (_served("meeting", size, ENVIRON, tmp_path)["received"] for size in (12, 120))
    assert many < 1.1 * few


def test_a_launcher_starts_the_hosts_and_tells_all_of_the_end_of_one_worker(tmp_path: Path) -> None:
    found = supervised(32, tmp_path, ENVIRON)
    assert 0 < found["seconds"] < 60
    assert found["started"] > 0
    assert -0.5 < found["told"] < 60
    said = (tmp_path / "said").read_text()
    assert "hvdtrain launch: rank 16 of 32 on 10.9.0.3 failed with exit code 1." in said


def test_the_page_predicts_what_10_000_workers_cost() -> None:
    machine = {"cpu": "c", "cores": 2, "memory_gib": 1, "kernel": "6", "python": "3", "commit": "x", "load": [0.0]}
    costs: dict[str, dict[str, Any]] = {}
    for size in (64, 640, 1000):
        figures = {"seconds": size * 1e-3, "took": 1.0, "received": 400, "memory": 1.5e6, "started": 1.0, "told": 0.1}
        costs[str(size)] = {cost.of: figures for cost in COSTS}
    result = {"date": "2026-01-01T00:00:00", "machine": {**machine, "load_at_end": [0.0]}, "versions": {}}
    result |= {"before": None, "costs": {"now": costs}}
    assert predicted(result, "now", COSTS[0]) == pytest.approx(10.0)
    page = markdown(result)
    assert "workers meet, time of the server, for 10,000 workers by the exponent: now 10 s, **not reached**" in page
    assert "workers meet, memory of the server, for 10,000 workers by the exponent: now 1.5 MB, reached" in page
