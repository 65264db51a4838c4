"""While ranks compute, Horovod's own threads leave the processors to them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.ranks import Launcher, run_ranks

WORKER = Path(__file__).parent / "workers" / "idle_cycles.py"
DEADLINE_S = 120
MOST = 300  # two seconds of 20 ms, and what is exchanged at the start; with cycles of 1 ms there are 2,000


@pytest.mark.parametrize("launcher", ["horovodrun-gloo", "mpirun"])
def test_ranks_that_await_nothing_have_few_cycles(launcher: Launcher, tmp_path: Path) -> None:
    """Each cycle is an exchange of all ranks, in which each one waits for the others."""
    timeline = {"HOROVOD_TIMELINE": str(tmp_path / "timeline"), "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
    finished = run_ranks(["python", str(WORKER)], 2, launcher, DEADLINE_S, timeline)
    assert finished.returncode == 0, finished.tail()
    assert 20 < (tmp_path / "timeline").read_text().count("CYCLE_START") < MOST
