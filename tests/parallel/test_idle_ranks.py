"""While ranks compute or wait for others, Horovod's own threads leave the processors to those that compute."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.ranks import Launcher, run_ranks

WORKER = Path(__file__).parent / "workers" / "idle_cycles.py"
DEADLINE_S = 120
MOST = 600  # four seconds of 20 ms, and what is exchanged at the start; with cycles of 1 ms there are 4,000
MOST_OF_A_CORE = 0.4  # while a rank waits: a tenth, where Open MPI's own wait takes all of it


@pytest.mark.parametrize("launcher", ["horovodrun-gloo", "mpirun"])
def test_ranks_that_await_nothing_or_each_other_use_little(launcher: Launcher, tmp_path: Path) -> None:
    """Each cycle is an exchange of all ranks, in which each one waits for the others."""
    timeline = {"HOROVOD_TIMELINE": str(tmp_path / "timeline"), "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
    as_usual = {"OMPI_MCA_threads_pthreads_yield_strategy": "sched_yield"}  # and not as tests/conftest.py sets it
    finished = run_ranks(["python", str(WORKER)], 2, launcher, DEADLINE_S, timeline | as_usual)
    assert finished.returncode == 0, finished.tail()
    assert 20 < (tmp_path / "timeline").read_text().count("CYCLE_START") < MOST
    (share,) = re.findall(r"share ([\d.]+)", finished.stdout)
    assert float(share) < MOST_OF_A_CORE
