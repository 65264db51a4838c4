"""Tuned buckets: bit for bit the training that they would give by hand, remembered, and kept by a resumed run.

Without Horovod's fusion: it depends on timing, and decides in which order three ranks' numbers are added.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.ranks import run_ranks

WORKER = Path(__file__).parent / "workers" / "tuning_runs.py"


@pytest.mark.parametrize(
    ("framework", "np", "launcher"), [("torch", 3, "mpirun"), ("tensorflow", 2, "horovodrun-gloo")]
)
@pytest.mark.timeout(400)
def test_laws(tmp_path: Path, framework: str, np: int, launcher: str) -> None:
    env = {"HVDTRAIN_CACHE_DIR": str(tmp_path / "cache"), "HOROVOD_FUSION_THRESHOLD": "0", "OMP_NUM_THREADS": "1"}
    (tmp_path / "runs").mkdir()
    finished = run_ranks(["python", str(WORKER), framework, str(tmp_path / "runs")], np, launcher, 300, env)
    assert finished.returncode == 0, finished.tail()
    assert sorted(re.findall(r"CHECKED rank (\d)", finished.stdout)) == [str(rank) for rank in range(np)]
    *with_threads, measured = re.findall(r"hvdtrain: .*, since a step took with (.*); not tuned: ", finished.stdout)
    of_buckets = r"25 MiB \S+ and \S+ ms, 1 MiB \S+ and \S+ ms"
    assert re.fullmatch(of_buckets, measured)
    assert len(with_threads) == (framework == "torch")
    assert all(
        re.fullmatch(of_buckets + r"; 2 threads \S+ and \S+ ms, 1 threads \S+ and \S+ ms", one) for one in with_threads
    )
    told = re.findall("hvdtrain: gradients are exchanged in buckets of up to", finished.stdout)
    assert len(told) == 5 + 2 * len(with_threads)
