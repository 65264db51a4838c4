"""Fits of hvdtrain.keras whose ranks do not do the same: they end at once, in words or all together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.ranks import run_ranks
from support.runs import reports_of_ranks

ROOT = Path(__file__).parents[2]
WORKER = ["python", str(Path(__file__).parent / "workers" / "keras_fit_ends.py")]
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "20",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "60",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    finished = run_ranks([*WORKER, str(folder)], 2, "horovodrun-gloo", 250, env=ENVIRONMENT)
    assert finished.returncode == 0, finished.tail()
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    return reports_of_ranks(folder, 2)


@pytest.mark.parametrize(
    ("check", "steps", "words"),
    [
        ("uneven", 3, "rank 0 has no batch 4 in epoch 1, rank 1 has batch 4 of epoch 1"),
        ("uneven, not averaged", 3, "rank 0 has no batch 4 in epoch 1, rank 1 has batch 4 of epoch 1"),
        ("validation", 4, "rank 0 validates epoch 1, rank 1 ends epoch 1"),
        ("stopped behind a history", 4, "rank 0 begins epoch 2, rank 1 has ended after epoch 1"),
        ("shared file", 0, "The callback ModelCheckpoint of ranks 0, 1 writes "),
    ],
)
def test_ranks_that_come_apart_are_told_so(ranks: list[dict[str, Any]], check: str, steps: int, words: str) -> None:
    for rank in ranks:
        assert words in rank[check]["ended"]
        assert "\nHINT: " in rank[check]["ended"]
        assert rank[check]["steps"] == steps
        assert rank[check]["took"] < 30


@pytest.mark.parametrize(
    ("check", "steps", "epochs"),
    [
        ("nan", 3, 1),
        ("stopped in an epoch", 2, 1),
        ("stopped at its end", 4, 1),
        ("stopped after an epoch", 4, 1),
        ("stopped early", 8, 2),
        ("no epochs", 0, 0),
    ],
)
def test_a_rank_that_is_stopped_stops_all(ranks: list[dict[str, Any]], check: str, steps: int, epochs: int) -> None:
    for rank in ranks:
        assert (rank[check]["ended"], rank[check]["steps"], rank[check]["epochs"]) == ("", steps, epochs)
    if check not in ("nan", "no epochs"):
        assert ranks[0][check]["weights"] == ranks[1][check]["weights"]


def test_all_ranks_have_the_weights_that_one_has_restored(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["stopped early"]["weights"] == pytest.approx(rank["stopped after an epoch"]["weights"], rel=1e-5)
        assert rank["stopped early"]["weights"] != pytest.approx(rank["stopped in an epoch"]["weights"], rel=1e-5)


def test_only_one_rank_writes_the_best_model(ranks: list[dict[str, Any]], folder: Path) -> None:
    assert [rank["own files"]["ended"] for rank in ranks] == ["", ""]
    assert sorted(path.name for path in folder.glob("*.keras")) == ["best_0.keras", "own_0.keras", "own_1.keras"]
