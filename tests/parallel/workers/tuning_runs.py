"""Laws of tuned buckets, on every rank: `tuning_runs.py FRAMEWORK FOLDER`."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from linear_training import done

from hvdtrain.adapters.chosen_framework import bind_device_and_threads
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.open import open_communicator
from hvdtrain.config.parser import parse_train_config
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.models.keras_import import prepare_keras
from hvdtrain.named_arrays import State
from hvdtrain.run.prepare import prepare
from hvdtrain.run.start import open_own_adapter, restore_and_broadcast
from hvdtrain.run.training import train
from hvdtrain.run.tuning.choice import tune
from hvdtrain.task.task import Task
from hvdtrain.tasks.task_registry import load_task
from hvdtrain.topology import detect_topology
from hvdtrain.user_cache import user_cache

STEPS = 3
PATIENT = 60.0  # seconds: a loaded machine may take long to compile a step
FLAGS = ["--task-args.width", "60", "--ema-decay", "0.9", "--max-grad-norm", "1"]  # 1.2 MiB of gradients, each below 1
EPOCHS = {
    "torch": "54",
    "tensorflow": "5000",
}  # of 30 steps: those make a few measured steps cheap, these a compilation


class Runs:
    """Short trainings of one framework, one after the other."""

    def __init__(self, framework: str, folder: Path) -> None:
        prepare_keras()
        topology = detect_topology(os.environ)
        self.folder = folder
        self.config = parse_train_config(
            ["--framework", framework, "--progress", "none", "--epochs", EPOCHS[framework], *FLAGS]
        )
        self.kind: type[Task] = load_task(self.config.task, framework)
        bind_device_and_threads(framework, topology)
        self.comm: Communicator = open_communicator(framework, topology, 120)

    def steps(self, threads: int = 1, **options: Any) -> tuple[dict[str, Any] | None, State]:
        """What was tuned, and the state after some steps of training, which torch begins with so many threads."""
        os.environ.pop("OMP_NUM_THREADS", None)
        if self.kind.framework == "torch":
            import torch

            torch.set_num_threads(threads)
        setup = prepare(replace(self.config, **options), self.kind, self.comm)
        adapter = open_own_adapter(setup, self.comm)
        restore_and_broadcast(setup, adapter, None, self.comm)
        tuned = tune(setup, adapter, self.comm, 0, {}, PATIENT)
        with setup.train.loader(0, 0) as loader:
            for step, batch in zip(range(STEPS), loader, strict=False):
                adapter.train_step(batch, step, setup.schedule.lr(step))
        return tuned, adapter.state()

    def run(self, name: str, polls: int) -> dict[str, Any]:
        """The result of a whole run that is asked to stop when it has asked so many times whether to."""
        left = iter(range(polls))
        config: TrainConfig = replace(self.config, output_dir=str(self.folder / name))
        setup = prepare(config, self.kind, self.comm)
        code, folder, _ = train(
            setup, self.comm, time.perf_counter(), lambda: None if next(left, None) is not None else "a test"
        )
        assert code == 75, code
        self.comm.barrier("test.ended")
        result: dict[str, Any] = json.loads((folder / "result.json").read_text())
        return result


def main(framework: str, folder: Path) -> None:
    runs = Runs(framework, folder)
    for threads in [2, 1] if framework == "torch" else [1]:
        cap = check_as_by_hand(runs, threads)
    check_resume(runs, cap)
    runs.comm.close()
    done(runs.comm.topology.rank)


def check_as_by_hand(runs: Runs, threads: int) -> float:
    """Measured, remembered, or chosen by hand: the same training. Returns the size of buckets in MiB."""
    tuned, first = runs.steps(threads)
    assert tuned is not None
    assert tuned["from"] == "measurement", tuned
    assert tuned["threads"] in (None, *range(1, threads)), tuned
    again, second = runs.steps(threads)
    assert again == {**tuned, "from": "cache"}, again
    by_hand, third = runs.steps(tuned["threads"] or threads, bucket_cap_mb=tuned["bucket_cap_mb"])
    assert by_hand is None
    require_equal(first, second)
    require_equal(first, third)
    return float(tuned["bucket_cap_mb"])


def check_resume(runs: Runs, cap: float) -> None:
    """A resumed run keeps its buckets, though the cache says something else by then."""
    own, other = ({"bucket_cap_mb": size, "threads": None} for size in (cap, {25.0: 1.0, 1.0: 25.0}[cap]))
    assert runs.run("run", 3)["tuned"] == {**own, "from": "cache"}
    if runs.comm.topology.is_root:
        for file in (user_cache() / "tuning").iterdir():
            file.write_text(json.dumps({"tuned": other}))
    runs.comm.barrier("test.changed")
    assert runs.run("run", 6)["tuned"] == {**own, "from": "checkpoint"}
    assert runs.run("fresh", 3)["tuned"] == {**other, "from": "cache"}


def require_equal(one: State, other: State) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.tobytes() == other[name].tobytes(), name


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
