"""hvdtrain.torch's optimizer with `op=hvd.Adasum` under mpirun: the weights of Horovod's own, with our sentences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.ranks import run_ranks

WORKER = Path(__file__).parent / "workers" / "adasum_torch.py"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "2",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "5",
}


@pytest.mark.timeout(300)
def test_steps_are_combined_as_in_horovod(tmp_path: Path) -> None:
    """Of four ranks: in pairs, and in pairs of pairs."""
    finished = run_ranks(["python", str(WORKER), str(tmp_path)], 4, "mpirun", 240, ENVIRONMENT)
    assert sorted(re.findall(r"CHECKED rank (\d)", finished.stdout)) == list("0123"), finished.tail()
