"""`hvd.join()`: what other ranks may call meanwhile, and that a request to stop waits.

With seven ranks Horovod wrote beyond its memory, and by gathers with four. In the same starts: ranks outside of a
process set reduce with all others in one graph.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from support.ranks import run_ranks
from support.runs import reports_of_ranks

ROOT = Path(__file__).parents[2]
WORKER = ["python", str(Path(__file__).parent / "workers" / "joined_ranks.py")]
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


@pytest.mark.parametrize(
    ("framework", "launcher", "ranks"),
    [("torch", "horovodrun-gloo", 7), ("tensorflow", "horovodrun-gloo", 7), ("torch", "mpirun", 4)],
)
def test_a_joined_rank_adds_zeros_and_what_cannot_have_them_is_refused(
    framework: str, launcher: Literal["mpirun", "horovodrun-gloo"], ranks: int, tmp_path: Path
) -> None:
    """Also what all ranks have called before under the same name, and in the next epoch."""
    finished = run_ranks([*WORKER, str(tmp_path), framework], ranks, launcher, 200, env=ENVIRONMENT)
    assert finished.returncode == 0, finished.tail()
    reports = reports_of_ranks(tmp_path, ranks)
    for rank, report in enumerate(reports):
        assert set(report["together"].values()) == {""}, report
        assert report["tapes"] in ([], [1.5 if rank < 2 else rank + 1, 4]), "a rank outside of a set keeps its gradient"
        assert report["steps"] == (0 if framework == "torch" else -1), "all ranks stop after the same step"
        for epoch in report["epochs"]:
            assert epoch["waited"], (rank, epoch)
            assert epoch["last"] == reports[0]["epochs"][epoch["epoch"]]["last"] > 0, (rank, epoch)
            assert len(epoch["errors"]) == (0 if rank == 0 else 6 if framework == "torch" else 5), epoch
            assert all("not supported with Join" in error for error in epoch["errors"].values()), epoch
            assert epoch["counts"] == ([] if rank == 0 else [ranks - 1, ranks - 1]), epoch
