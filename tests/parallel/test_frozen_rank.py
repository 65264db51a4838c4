"""A rank that is frozen leaves the threads of the others free: they notice it, and end the job."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.ranks import run_ranks

WORKER = Path(__file__).parent / "workers" / "start_beside_frozen_rank.py"


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun-gloo"])
def test_to_start_a_collective_holds_up_no_other_thread(launcher: str) -> None:
    """With process sets that may be added at any time, on which ranks agree again and again."""
    finished = run_ranks(["python", str(WORKER)], 2, launcher, 120, interpreter="fresh")
    assert finished.returncode == 0, finished.tail()
    assert "RESULT 20 rounds" in finished.stdout, finished.tail()
