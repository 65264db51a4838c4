"""hvdtrain.tensorflow in a loop of a user's own: what two ranks train is what one process trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes import run_command
from support.ranks import run_ranks

ROOT = Path(__file__).parents[2]
WORKER = ["python", str(Path(__file__).parent / "workers" / "tensorflow_loop.py")]
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "60"}
DEADLINE_S = 250


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("two")
    finished = run_ranks([*WORKER, str(folder)], 2, "horovodrun-gloo", DEADLINE_S, env=ENVIRONMENT)
    assert finished.returncode == 0, finished.tail()
    return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("one")
    finished = run_command([*WORKER, str(folder)], DEADLINE_S, ENVIRONMENT)
    assert finished.returncode == 0, finished.tail()
    report: dict[str, Any] = json.loads((folder / "rank_0.json").read_text())
    return report


@pytest.mark.parametrize("how", ["tape", "fp16", "groups", "predivide", "two_optimizers"])
def test_two_ranks_train_what_one_process_trains(ranks: list[dict[str, Any]], alone: dict[str, Any], how: str) -> None:
    assert ranks[0][how] == ranks[1][how]
    np.testing.assert_allclose(ranks[0][how], alone[how], atol=5e-3 if how == "fp16" else 2e-6)


def test_passes_are_summed_before_they_are_reduced(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        # The ranks' passes have the means 1.5, 2.5, 3.5 and 4.5.
        assert rank["passes"] == [[0, -4, -4, -12], [0, -2, -2, -6]]


def test_local_layers_keep_their_gradient(ranks: list[dict[str, Any]]) -> None:
    assert [rank["partial"] for rank in ranks] == [[0.5, 1.5], [1.0, 1.5]]


def test_collectives_take_keras_variables(ranks: list[dict[str, Any]]) -> None:
    expected = {"sum": [2, 4], "average": 0.5, "gathered": [0, 1], "broadcast": [5], "object": {"from": 0}}
    assert [rank["collectives"] for rank in ranks] == [expected, expected]
