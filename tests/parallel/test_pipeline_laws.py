"""What holds for a model in stages, and for shards on four ranks: it trains as the whole model does, in one process or
on several ranks, its checkpoints are those of the whole model, and each record is used once.

All runs at a number of ranks are made in one start, by `workers/option_runs.py`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.processes import run_command
from support.ranks import run_ranks
from support.runs import result_of

from hvdtrain.weights.weight_files import read_run, weights_of_run

WORKER = Path(__file__).parent / "workers" / "option_runs.py"
DEADLINE_S = 400
# 1,438 records: 3 steps an epoch, the last one of 436 records, which micro batches cannot share evenly.
DIGITS = "--global-batch-size 501 --epochs 2 --task-args.width 4"
BETWEEN = 4  # steps: inside the second epoch
OTHERS = {
    "plain": DIGITS,
    "adamw": f"{DIGITS} --optimizer adamw --weight-decay 0.1 --max-grad-norm 0.5 --ema-decay 0.9",
    "fp16": f"{DIGITS} --precision fp16 --optimizer sgd --lr 0.05 --max-grad-norm 0.5",
    # BatchNorm, whose statistics are those of a micro batch; and a transformer, whose first layer looks up bytes.
    "pictures": "--task synthetic --model resnet18 --task-args.side 32 --task-args.records 48 --global-batch-size 16 "
    "--lr 0.01 --epochs 1",
    "text": "--task text --data.dir TEXT --task-args.width 16 --task-args.context 16 --optimizer sgd --lr 0.1 "
    "--epochs 1",
    "listed": "--task listed_stages:Listed --global-batch-size 501 --epochs 1",
}
OWN = "--parallel.stages"
# Horovod carries the activations of the first case of each size: its process sets are formed for all cases.
CASES = {
    1: {
        "plain-devices": f"{OWN} 2 --parallel.devices cpu,cpu --parallel.micro-batches 3",
        "adamw-devices": f"{OWN} 3 --parallel.devices cpu,cpu,cpu --parallel.schedule gpipe",
        "fp16-devices": f"{OWN} 4 --parallel.devices cpu,cpu,cpu,cpu --parallel.micro-batches 2",
    },
    2: {
        "adamw-horovod": f"{OWN} 2 --parallel.transport horovod",
        "plain-mpi": f"{OWN} 2 --parallel.transport mpi --parallel.micro-batches 3 --parallel.cuts hidden",
        "adamw-naive": f"{OWN} 2 --parallel.transport mpi --parallel.micro-batches 1",
        "fp16-gpipe": f"{OWN} 2 --parallel.schedule gpipe",
        "plain-devices": f"{OWN} 2 --parallel.devices cpu,cpu",
        "pictures-mpi": f"{OWN} 2 --parallel.micro-batches 2",
        "text-mpi": f"{OWN} 2 --activation-checkpointing",
        "listed-mpi": f"{OWN} 2",
    },
    4: {
        "adamw-horovod": f"{OWN} 2 --parallel.transport horovod",
        "adamw-mpi": f"{OWN} 2 --parallel.transport mpi --parallel.micro-batches 5",
        "plain-deep": f"{OWN} 4",
        "fp16-mpi": f"{OWN} 2 --compression fp16",
        "text-mpi": f"{OWN} 2 --parallel.micro-batches 2 --parallel.schedule gpipe",
        "adamw-shard-optimizer": "--shard optimizer",
        "adamw-shard-gradients": "--shard gradients",
    },
}
WHOLE = dict.fromkeys(OTHERS, "") | {"pictures": "--accumulate-steps 2"}  # BatchNorm sees the same micro batches
# name: ranks and division of the run that is stopped, and of the one that goes on from its checkpoint.
CROSSED = {
    "whole-to-2x2": ((1, ""), (4, f"{OWN} 2")),
    "2-to-4-stages": ((2, f"{OWN} 2"), (4, f"{OWN} 4")),
    "2x2-to-whole": ((4, f"{OWN} 2"), (1, "")),
    "4-to-2-shards": ((4, "--shard gradients"), (2, "--shard optimizer")),
    "4-shards-to-2-stages": ((4, "--shard optimizer"), (2, f"{OWN} 2")),
}
EXACT = 2e-5
COARSE = 1e-2


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """runs(size) → the folder of all runs with so many ranks; a first time for those that others go on from."""
    base = tmp_path_factory.mktemp("pipelines")
    text = tmp_path_factory.mktemp("text")
    (text / "all.txt").write_text("\n".join(f"line {number} has {number * number} words" for number in range(200)))

    def start(size: int, folder: Path, cases: dict[str, list[str]]) -> None:
        folder.mkdir()
        (folder / "cases.json").write_text(json.dumps(cases))
        command = ["python", str(WORKER), str(folder), str(folder / "cases.json"), "torch"]
        environment = {"OMP_NUM_THREADS": "1"}
        if size == 1:
            finished = run_command(command, DEADLINE_S, environment)
        else:
            finished = run_ranks(command, size, "mpirun", DEADLINE_S, environment)
        assert finished.returncode == 0, finished.tail()

    def options(kind: str) -> list[str]:
        return ["--framework", "torch", *OTHERS[kind].replace("TEXT", str(text)).split()]

    @functools.cache
    def first(size: int) -> Path:
        cases = {
            name: [*options(name.partition("-")[0]), *flags.split()]
            for name, flags in (CASES[size] | (WHOLE if size == 1 else {})).items()
        }
        for name, ((ranks, division), _) in CROSSED.items():
            if ranks == size:
                stopped = ["--max-steps", str(BETWEEN), *division.split()]
                cases[f"{name}-stopped"] = [*options("adamw"), *stopped]
        start(size, base / str(size), cases)
        return base / str(size)

    @functools.cache
    def crossed(size: int) -> Path:
        cases = {}
        for name, ((before, _), (ranks, division)) in CROSSED.items():
            if ranks == size:
                checkpoint = first(before) / f"{name}-stopped" / "checkpoints" / f"step_{BETWEEN:08d}"
                cases[name] = [*options("adamw"), "--resume", str(checkpoint), *division.split()]
        start(size, base / f"{size}-crossed", cases)
        return base / f"{size}-crossed"

    return lambda size, again=False: crossed(size) if again else first(size)  # type: ignore[misc]


def state_of(run: Path) -> dict[str, Any]:
    """All arrays of the newest checkpoint."""
    checkpoint = run / "checkpoints" / (run / "checkpoints" / "latest").read_text().strip()
    files = sorted(checkpoint.glob("*.safetensors"))
    return functools.reduce(lambda arrays, file: arrays | load_file(file), files, {})


def furthest(one: dict[str, Any], other: dict[str, Any]) -> float:
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name].astype(np.float64) - other[name]).max(initial=0)) for name in one)


ALL = [(size, name) for size, cases in CASES.items() for name in cases]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("size", "name"), ALL)
def test_stages_train_as_the_whole_model(size: int, name: str, runs: Callable[..., Path]) -> None:
    """Weights, the optimizer's state, their average, the loss scale, and the metrics."""
    kind = name.partition("-")[0]
    whole, staged = runs(1) / kind, runs(size) / name
    tolerance = COARSE if kind == "fp16" else EXACT
    assert furthest(state_of(staged), state_of(whole)) < tolerance
    results = [result_of(run) for run in (whole, staged)]
    assert results[1]["metrics"]["loss"] == pytest.approx(results[0]["metrics"]["loss"], abs=tolerance)
    assert results[1]["parameters"] == results[0]["parameters"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CROSSED)
def test_a_checkpoint_of_one_division_is_one_of_every_other(name: str, runs: Callable[..., Path]) -> None:
    _, (size, _) = CROSSED[name]
    assert furthest(state_of(runs(size, True) / name), state_of(runs(1) / "adamw")) < EXACT


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [2, 4])
def test_each_record_is_used_once(size: int, runs: Callable[..., Path]) -> None:
    """Although all stages of a replica are given it."""
    for name in CASES[size]:
        checked = run_command(["python", "-m", "hvdtrain", "shard", "verify", str(runs(size) / name)], 60)
        assert checked.returncode == 0, checked.tail()


@pytest.mark.timeout(400)
def test_the_way_is_chosen_at_the_start(tmp_path: Path) -> None:
    train = ["python", "-m", "hvdtrain", "--framework", "torch", "--parallel", "auto", "--epochs", "1"]
    finished = run_ranks([*train, "--output-dir", "out"], 2, "mpirun", 300, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    assert "hvdtrain: --parallel auto: " in finished.stdout, finished.tail()
    assert result_of(tmp_path / "out")["epochs"] == 1


@pytest.mark.timeout(400)
def test_layers_that_share_weights_train_in_stages(tmp_path: Path) -> None:
    """Their weights have two names in a checkpoint. A layer without weights follows evaluation, wherever it is."""
    (tmp_path / "tied_task.py").write_text(TIED)
    train = ["python", "-m", "hvdtrain", "--task", "tied_task:Tied", "--epochs", "1"]
    train += ["--parallel.stages", "2", "--parallel.cuts", "last.1", "--ema-decay", "0.9"]
    finished = run_ranks([*train, "--output-dir", "out"], 2, "mpirun", 300, {"PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    saved = state_of(tmp_path / "out")
    np.testing.assert_array_equal(saved["model/second.weight"], saved["model/first.weight"])
    averaged = weights_of_run(read_run(tmp_path / "out"), tmp_path / "out", averaged=True).arrays
    for name in ("first.weight", "second.weight"):
        np.testing.assert_array_equal(averaged[name], saved["ema/first.weight"])
    assert result_of(tmp_path / "out")["metrics"]["loss"] < 1e6


TIED = """
import torch
from torch import nn
from hvdtrain.tasks.torch import TorchDigits


class Half(nn.Module):
    def forward(self, features):
        assert not self.training or torch.is_grad_enabled(), "in training mode while it is validated"
        return features / 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.last = nn.Sequential(Half(), nn.Linear(64, 10))

    def forward(self, pictures):
        features = torch.flatten(pictures, 1)
        return self.last(self.second(torch.relu(self.first(features))))


class Tied(TorchDigits):
    def build_model(self):
        return Model()
"""
