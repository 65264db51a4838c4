"""The less used arguments of hvdtrain.tensorflow and hvdtrain.keras on two ranks, against numbers by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.ranks import run_ranks
from support.runs import reports_of_ranks

ROOT = Path(__file__).parents[2]
WORKER = ["python", str(Path(__file__).parent / "workers" / "tensorflow_reductions.py")]
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "HOROVOD_TIMELINE": "DYNAMIC",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "60",
}
EQUAL = {
    "average": [2, 3],
    "Sum": [4, 6],
    "Min": [1, 2],
    "Max": [3, 4],
    "Product": [3, 8],
    # Maleki et al. 2020: (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b of a = [1, 2] and b = [3, 4].
    "Adasum": pytest.approx([2.24, 2.92]),
    "bfloat16, groups": [2, 3],
    "bfloat16, Max": [3, 4],
    "optimizer Max": [-3, -4],
    "optimizer Adasum": pytest.approx([-2.24, -2.92]),
    "rows": {"sparse": True, "rows": [0.5, 1, 0.5]},
    "rows, summed": {"sparse": True, "rows": [1, 2, 1]},
    "rows, dense": {"sparse": False, "rows": [0.5, 1, 0.5]},
    "rows, dense, Max": {"sparse": False, "rows": [1, 1, 1]},
    "branches": [[0.5, 0.5], [1, 1], None],
    "branches, Max": [[1, 1], [2, 2], None],
    "branches, groups": [[0.5, 0.5], [1, 1], None],
    "branches, rows": [[0.5, 0], [0, 1], None],
    "branches, rows and a whole": [[0.5, 0.5], [0, 1], None],
    "branches, dense rows": [[0.5, 0.5], [0, 1], None],
    "branches of an optimizer": [-0.5, -1, -2],
    "branches of an optimizer, two passes": [-0.5, -1, -2],
    "loaded": {"optimizer": "Halved", "kernels": [[-1, -1.5]]},
    "loaded, two passes": {"optimizer": "Halved", "kernels": [[0, 0], [-2, -3]]},
    "by name": {"one": 2, "ten": 20},
    "large part": [1.5, 1.5],
}
OF_EACH = {
    "partial": ([-0.5, -1.5], [-1, -1.5]),
    "warm-up": ("Epoch 2: finished gradual learning rate warmup to 0.1.", ""),
    "loaded, process set": (
        {"optimizer": "Halved", "kernels": [[-0.5, -1]]},
        {"optimizer": "Halved", "kernels": [[-1.5, -2]]},
    ),
    "process sets": (
        {"tape": [1, 2], "optimizer": [-1, -2], "included": False},
        {"tape": [3, 4], "optimizer": [-3, -4], "included": True},
    ),
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("two")
    finished = run_ranks([*WORKER, str(folder)], 2, "mpirun", 250, env=ENVIRONMENT)  # Adasum is MPI's
    assert finished.returncode == 0, finished.tail()
    return reports_of_ranks(folder, 2)


@pytest.mark.parametrize("what", EQUAL)
def test_ranks_compute_the_same(ranks: list[dict[str, Any]], what: str) -> None:
    assert ranks[0][what] == ranks[1][what] == EQUAL[what]


@pytest.mark.parametrize("what", OF_EACH)
def test_each_rank_computes_its_own(ranks: list[dict[str, Any]], what: str) -> None:
    assert (ranks[0][what], ranks[1][what]) == OF_EACH[what]


def trained(rates: list[float], corrected: bool) -> float:
    """A weight of 1 after steps down its square by SGD with the momentum 0.9, from the learning rate 0.05."""
    weight, velocity, before = 1.0, 0.0, 0.05
    for rate in rates:
        velocity = 0.9 * (rate / before if corrected else 1.0) * velocity - 2 * rate * weight
        weight, before = weight + velocity, rate
    return weight


@pytest.mark.parametrize(
    ("how", "rates", "corrected"),
    [
        ("staircase", [0.05, 0.05, 0.2, 0.2, 0.3, 0.3], True),
        ("smooth", [0.1, 0.15, 0.2, 0.25, 0.3, 0.35], True),
        ("smooth, uncorrected", [0.1, 0.15, 0.2, 0.25, 0.3, 0.35], False),
    ],
)
def test_schedules(ranks: list[dict[str, Any]], how: str, rates: list[float], corrected: bool) -> None:
    found = ranks[0][how]
    assert found == ranks[1][how]
    assert found["rates"] == pytest.approx(rates)
    assert found["logged"] == pytest.approx(rates[1::2])
    assert found["weight"] == pytest.approx(trained(rates, corrected), rel=1e-4)
    assert found["momentum"] == 0.9


def test_eager_gradients_of_unlike_shapes_are_not_added_up(ranks: list[dict[str, Any]]) -> None:
    """Ranks whose gradients have unlike shapes of one size submit unlike names, and wait for each other in vain."""
    assert len(set(ranks[0]["eager names"])) == 2, ranks[0]["eager names"]


@pytest.mark.parametrize(
    ("what", "hint"),
    [
        ("rows, Max", "sparse_as_dense=True"),
        ("branches, two kinds", "sparse_as_dense=True"),
        ("momentum", "True or False"),
        ("set of others", "there twice"),
        ("later set", 'process_sets="dynamic"'),
    ],
)
def test_refusals(ranks: list[dict[str, Any]], what: str, hint: str) -> None:
    assert hint in ranks[0][what].split("HINT: ")[1]
