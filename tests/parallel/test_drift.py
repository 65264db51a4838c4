"""Ranks stay equal to the last bit after every update: weights, the optimizer's slots, averages of the weights.

With a picture model whose gradients are of more and of less than 1 MiB, and which is so large in some cases that
TensorFlow's graph optimizer saves memory; with all optimizers and options whose sums differ; in both frameworks, and in
Keras' `fit` with each of Keras' optimizers; while threads of each rank lose a core and get it back at random. All cases
of a framework at a number of ranks are trained in one start, by `workers/drift_runs.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.ranks import run_ranks
from support.runs import reports_of_ranks

pytestmark = pytest.mark.timeout(900)  # the start that several tests share counts for the first of them
WORKERS = Path(__file__).parent / "workers"
DEADLINE_S = 840
STARTS = [("torch", 2), ("torch", 3), ("tensorflow", 2), ("tensorflow", 3)]
EQUAL = {"adamw-shard": "adamw", "task-shard": "task"}
"""What --shard changes must change no weight, but for rounding."""

Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Ranks]:
    """ranks(framework, size) → of each rank, of each case: the hashes of its arrays, and the sums of its graph."""

    @functools.cache
    def start(framework: str, size: int) -> Ranks:
        folder = tmp_path_factory.mktemp(f"{framework}-{size}")
        command = ["python", str(WORKERS / "drift_runs.py"), framework, str(folder)]
        finished = run_ranks(command, size, "horovodrun-gloo", DEADLINE_S)
        assert finished.returncode == 0, finished.tail()
        return reports_of_ranks(folder, size)

    return start


@pytest.mark.parametrize(("framework", "size"), STARTS)
def test_ranks_have_the_same_bits_after_every_update(
    framework: str, size: int, ranks: Callable[[str, int], Ranks]
) -> None:
    first, *others = ranks(framework, size)
    assert len(first) >= (4 if size == 3 else 16)
    differences = []
    for case, noted in first.items():
        hashes = noted["hashes"]
        assert hashes[0].keys() == hashes[-1].keys()
        moved = [name for name in hashes[0] if hashes[0][name] != hashes[-1][name]]
        assert len(moved) > 5, case  # else nothing was trained
        for rank, other in enumerate(others, 1):
            for update, (mine, theirs) in enumerate(zip(hashes, other[case]["hashes"], strict=True)):
                names = [name for name in mine if mine[name] != theirs[name]]
                if names:
                    differences.append(f"{case}: rank {rank} differs first after {update}: {names[:3]}")
                    break
    assert not differences, "\n".join(differences)


@pytest.mark.parametrize("size", [2, 3])
def test_no_sum_after_the_exchange_depends_on_time(size: int, ranks: Callable[[str, int], Ranks]) -> None:
    """In the graphs as TensorFlow has optimized them: ranks can stay equal by luck for a long time."""
    sums = {case: noted["sums"] for case, noted in ranks("tensorflow", size)[0].items()}
    assert not {case: names for case, names in sums.items() if names}


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_sharded_state_changes_no_weight(framework: str, ranks: Callable[[str, int], Ranks]) -> None:
    """With decay, and weights exempt from it, as hvdtrain and as the task's own optimizer exempts them."""
    rank = ranks(framework, 2)[0]
    for with_shards, without in EQUAL.items():
        assert rank[with_shards]["largeness"] == pytest.approx(rank[without]["largeness"], rel=1e-4)
