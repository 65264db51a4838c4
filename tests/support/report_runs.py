"""Run folders as trainings leave them, without a training: for what reads them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Line = dict[str, Any]

RESULT: dict[str, Any] = {
    **{"status": "finished", "framework": "torch", "task": "digits", "world_size": 2, "global_batch_size": 32},
    **{"steps": 200, "epochs": 4, "samples_seen": 6400, "metrics": {"loss": 0.1, "accuracy": 0.96}},
    "best": {"metric": "accuracy", "value": 0.97, "step": 150, "epoch": 2},
    **{"stopped_early": None, "first_step_loss": 2.3, "samples_per_second": 3210.0},
    "seconds": {"total": 90.0, "start": 5.0, "data": 10.0, "compute": 50.0, "allreduce": 20.0},
    "parameters": 12345,
    "weights": {"sha256": "0123456789abcdef" * 4, "equal_on_all_ranks": True},
    "versions": {"python": "3.13.1", "torch": "2.13.0"},
}
ENVIRONMENT: dict[str, Any] = {
    "versions": {"python": "3.13.1"},
    "platform": "Linux",
    "topology": {"rank": 0, "size": 2, "launcher": "horovodrun", "hosts": ["a", "b"]},
    "argv": ["--lr", "0.01"],
}
CONFIG: dict[str, Any] = {"task": "digits", "lr": 0.01, "seed": 42, "data": {"dir": None, "shuffle": "global"}}


def write_run(
    folder: Path,
    lines: list[Line] | None = None,
    config: dict[str, Any] | None = None,
    result: dict[str, Any] | None = None,
) -> Path:
    """A finished run of 200 updates on two ranks; what is given takes the place of the usual content."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({**CONFIG, **(config or {})}))
    (folder / "env.json").write_text(json.dumps(ENVIRONMENT))
    (folder / "result.json").write_text(json.dumps({**RESULT, **(result or {})}))
    lines = list(usual_lines()) if lines is None else lines
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def usual_lines(steps: int = 200, slow: float = 1.0, measures: int = 2, ranks: int = 2) -> Iterator[Line]:
    """Of a run that was interrupted after half of its updates, and resumed ten updates before.

    Args:
        slow: how many times as long rank 1 computes.
    """
    half = steps // 2
    yield {"event": "started", "step": 0, "begun": 1000.0, "time": 1005.0}
    yield from _trained(1, half, 1005.0, slow, measures, ranks)
    yield {
        "event": "resumed",
        "step": half - 10,
        "begun": 1020.0 + half,
        "time": 1022.0 + half,
        "cause": "rank 1 is lost",
    }
    yield from _trained(half - 9, steps, 1022.0 + half, slow, measures, ranks)
    yield {"event": "ended", "step": steps, "time": 1040.0 + steps}


def _trained(first: int, last: int, begin: float, slow: float, measures: int, ranks: int) -> Iterator[Line]:
    chance = random.Random(first)
    names = ["loss", "accuracy", *(f"measure {number}" for number in range(measures - 2))][:measures]
    for step in range(first, last + 1):
        at = round(begin + (step - first), 3)
        own = [
            {"data": 0.05, "compute": (slow if rank == 1 else 1) * chance.uniform(0.4, 0.5)} for rank in range(ranks)
        ]
        longest = max(sum(rank.values()) for rank in own)
        seconds = [{**rank, "allreduce": longest - sum(rank.values()), "checkpoint": 0.0} for rank in own]
        values = {name: round(chance.gauss(2.0, 0.3) / (1 + step / 50), 6) for name in names}
        speed = {"lr": 0.01 * step / last, "samples": 32, "samples_per_second": round(chance.uniform(60, 70), 1)}
        yield {"split": "train", "epoch": 0, "step": step, **values, **speed, "seconds": seconds, "time": at}
        if step % 50 == 0:
            yield {"split": "validation", "epoch": 0, "step": step, **values, "samples": 9, "seconds": 0.5, "time": at}
            cost = {"bytes": 5_000_000, "seconds": 0.1, "write_seconds": 0.4}
            yield {"event": "checkpoint", "step": step, "path": f"step_{step:08d}", **cost, "time": at}
