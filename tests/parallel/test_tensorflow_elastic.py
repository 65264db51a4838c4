"""hvdtrain.tensorflow's and hvdtrain.keras' elastic states under Horovod's elastic driver, with a worker killed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from support.elastic import run_elastic
from support.processes import run_command

ROOT = Path(__file__).parents[2]
WORKER = str(Path(__file__).parent / "workers" / "tensorflow_elastic.py")
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    finished = run_command(["python", WORKER, str(folder), "nowhere"], 200, ENVIRONMENT)
    assert finished.returncode == 0, finished.tail()
    return folder


CASES = [("loop", "loop 8 steps by 1"), ("passes", "passes 4 steps by 1"), ("fit", "fit 12 steps by 1")]


# In the loop the one that is left goes on with the step that two have traced; with several passes in the middle of an
# update, and in fit of an epoch.
@pytest.mark.parametrize(("where", "by"), CASES)
def test_training_goes_on_exactly_without_a_killed_worker(alone: Path, tmp_path: Path, where: str, by: str) -> None:
    finished = run_elastic([sys.executable, WORKER, str(tmp_path), where], tmp_path, 200, ENVIRONMENT)
    assert finished.returncode == 0, finished.tail()
    assert list(tmp_path.glob("killed*")) != []
    assert f"TRAINED {by}" in finished.stdout, finished.tail()
    assert "COMMITS 6" in finished.stdout  # after the last of four batches, and after each of three epochs
    for name in ("loop", "passes", "fit"):
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), np.load(alone / f"{name}.npy"), atol=2e-6)
