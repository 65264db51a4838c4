"""BatchNorm over workers through Horovod: uneven parts of a batch on n ranks are the whole batch on one.

Ranks train a few steps on their parts, with a fill record in one of them, and then one of them alone on the whole
batch; float32 to 1e-5, a small ResNet in float64 to 1e-9.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.ranks import run_ranks

ROOT = Path(__file__).parents[2]
WORKERS = Path(__file__).parent / "workers"
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "OMP_NUM_THREADS": "1",
    # A collective that not all ranks join ends the run with Horovod's own words before the deadline does.
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "20",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "40",
}
PER_ROW = ("/losses", "/to_inputs")
TOLERANCES = {"layers": 1e-5, "layers_eagerly": 1e-5, "residual": 1e-9}


@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    ("framework", "size", "cases"),
    [
        ("torch", 2, ["layers", "residual"]),
        ("torch", 3, ["layers"]),
        ("keras", 2, ["layers", "residual"]),
        ("keras", 3, ["layers", "layers_eagerly"]),
    ],
)
def test_parts_on_ranks_are_the_whole_on_one(framework: str, size: int, cases: list[str], tmp_path: Path) -> None:
    command = ["python", str(WORKERS / f"sync_batch_norm_{framework}.py"), str(tmp_path), *cases]
    finished = run_ranks(command, size, "mpirun", deadline_s=240, env=ENVIRONMENT)
    assert finished.returncode == 0, finished.tail()
    ranks = [dict(np.load(tmp_path / f"rank_{rank}.npz")) for rank in range(size)]
    expected = {name: array for name, array in ranks[0].items() if "/expected/" in name}
    assert {name.split("/")[0] for name in expected} == set(cases)
    for rank, arrays in enumerate(ranks):
        own = slice(int(arrays["first"]), int(arrays["first"] + arrays["rows"]))
        for name, array in expected.items():
            wanted = array[own] if name.endswith(PER_ROW) else array
            tolerance = TOLERANCES[name.split("/")[0]]
            found = arrays[name.replace("/expected/", "/found/")]
            np.testing.assert_allclose(found, wanted, tolerance, tolerance, err_msg=f"{name} on rank {rank}")
