"""`--shard`: each rank keeps its part of the optimizer's state, and of the summed gradients. The numbers that it trains
are in test_option_laws.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.ranks import run_ranks

WORKER = Path(__file__).parent / "workers" / "sharded_gradients.py"
RANKS = 3


def test_each_rank_keeps_its_part_only() -> None:
    finished = run_ranks(["python", str(WORKER)], RANKS, "horovodrun-gloo", 180)
    assert finished.returncode == 0, finished.tail()
    everything = [json.loads(line) for line in re.findall(r"\{\"rank\".*\}", finished.stdout)]
    for optimizer in ("Adam", "Adagrad"):
        ranks = [found for found in everything if found["of"] == optimizer]
        assert sorted(found["rank"] for found in ranks) == [*range(RANKS)], finished.tail()
        check_parts(ranks)


def check_parts(ranks: list[Any]) -> None:
    for shard in ("optimizer", "gradients"):
        assert all(found[shard]["furthest"] < 2e-5 for found in ranks)
        whole, parts = ranks[0]["none"]["state_bytes"], [found[shard]["state_bytes"] for found in ranks]
        assert sum(parts) == whole
        assert max(parts) < whole / RANKS + 1000  # numbers cannot be cut
    # Before the messages of the last backward pass are waited for. Rank 1 has not begun: it has no first bucket.
    for found in (found for found in ranks if found["rank"] != 1):
        kept = {shard: found[shard]["kept_gradient_bytes"] for shard in ("none", "optimizer", "gradients")}
        assert kept["none"] == kept["optimizer"] > 2 * kept["gradients"], kept


@pytest.mark.parametrize(("framework", "name"), [("torch", "Adafactor"), ("tensorflow", "Lamb")])
def test_an_optimizer_that_needs_whole_weights_is_refused(framework: str, name: str, tmp_path: Path) -> None:
    """As a task may choose it."""
    base = {"torch": "torch.optim.Adafactor(model.parameters(), lr=lr)", "tensorflow": "keras.optimizers.Lamb(lr)"}
    library = {"torch": "torch", "tensorflow": "keras"}[framework]
    (tmp_path / "own_task.py").write_text(
        f"import {library}\n"
        "from hvdtrain.tasks.task_registry import load_task\n\n\n"
        f"class Own(load_task('digits', '{framework}')):\n"
        "    def build_optimizer(self, model, lr):\n"
        f"        return {base[framework]}\n"
    )
    argv = ["python", "-m", "hvdtrain", "--task", "own_task:Own", "--shard", "optimizer", "--output-dir", "out"]
    finished = run_ranks(argv, 2, "mpirun", 180, env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    assert finished.returncode == 2, finished.tail()
    assert f"--shard is given with the optimizer {name}." in finished.stderr, finished.tail()
    assert not (tmp_path / "out").exists()
