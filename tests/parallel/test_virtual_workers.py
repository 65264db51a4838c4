"""`--virtual-workers 8`: the same bits on 1, 2, 3, 5 and 8 workers, and for a run that goes from one number to another.

With dropout, BatchNorm, damaged records, a short last batch, optimizers with state, clipping, averaged weights,
compressed gradients, an optimizer that draws random numbers, and in torch a buffer that no state_dict has. All runs at
a number of workers are made in one start, by `workers/option_runs.py`.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from support.digits_runs import digits_pattern, flip
from support.jobs import python_path
from support.processes import run_command
from support.ranks import run_ranks
from support.runs import latest_checkpoint, lines_of, result_of

pytestmark = pytest.mark.timeout(900)  # the starts that several tests share count for the first of them
WORKER = Path(__file__).parent / "workers" / "option_runs.py"
DEADLINE_S = 400
TASKS = {"torch": "unequal_torch:Unequal", "tensorflow": "unequal_keras:Unequal"}
SIZES = (8, 3, 5, 2, 1)
# 1,438 records, of which one file's first is damaged: 22 steps, the last one with 53 of 66 records. Eight workers
# cannot share 66 records evenly.
COMMON = "--virtual-workers 8 --global-batch-size 66 --epochs 1 --log-interval 3 --data.on-corrupt mask"
PLAIN = "--optimizer adamw --weight-decay 0.1 --max-grad-norm 0.5 --ema-decay 0.9"
COMPRESSED = "--optimizer sgd --momentum 0.9 --lr 0.05"
DRAWING = "--lr 0.05"  # with the tasks' own optimizers
CASES = {
    "torch": {
        "plain": PLAIN,
        "bf16": f"{COMPRESSED} --compression bf16 --precision bf16",
        "fp16": f"{DRAWING} --compression fp16 --precision fp16",
    },
    "tensorflow": {"plain": PLAIN, "bf16": f"{DRAWING} --compression bf16"},
}
USUAL = [1, *range(3, 22, 3), 22]
"""The updates after which all runs write a line."""
NUMBERS = ("step", "lr", "loss", "accuracy", "grad_norm", "grad_norm_peak")
SAVING = ["--bucket-cap-mb", "0.001", "--checkpoint-interval", "6", "--checkpoint-every", "0.02"]
"""Given at all numbers of workers but the first: many messages, and checkpoints, change nothing."""
LAST = 22
STOPS = dict(zip(SIZES, (4, 7, 12, 17, LAST), strict=True))
"""After how many updates the run that moves goes on with the next number of workers."""

Runs = Callable[[str], Path]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """runs(framework) → a folder with runs SIZE/CASE."""
    data = tmp_path_factory.mktemp("damaged")
    for file in Path(digits_pattern("*")).parent.glob("*.tfrecord"):
        shutil.copy(file, data)
    flip(data / "train-00000-of-00004.tfrecord", 40)

    @functools.cache
    def start(framework: str) -> Path:
        folder = tmp_path_factory.mktemp(framework)
        common = ["--framework", framework, "--task", TASKS[framework], *COMMON.split(), "--data.dir", str(data)]
        before: list[str] = []
        for size in SIZES:
            saving = SAVING if size != SIZES[0] else []
            cases = {name: [*common, *options.split(), *saving] for name, options in CASES[framework].items()}
            cases["moving"] = [*common, *PLAIN.split(), "--max-steps", str(STOPS[size]), *before]
            before = ["--resume", str(folder / str(size) / "moving")]
            _run(framework, size, cases, folder / str(size))
        return folder

    return start


def _run(framework: str, size: int, cases: Mapping[str, list[str]], folder: Path) -> None:
    folder.mkdir()
    (folder / "cases.json").write_text(json.dumps(cases))
    command = ["python", str(WORKER), str(folder), str(folder / "cases.json"), framework]
    environment = {"OMP_NUM_THREADS": "1"}
    if size == 1:
        finished = run_command(command, DEADLINE_S, environment)
    else:
        finished = run_ranks(command, size, "horovodrun-gloo", DEADLINE_S, environment)
    assert finished.returncode == 0, finished.tail()


def bits_of(run: Path) -> dict[str, Any]:
    """Of everything that training has made: all arrays of the last checkpoint, and the numbers of readings."""
    state: dict[str, NDArray[Any]] = {}
    for file in sorted(latest_checkpoint(run).glob("*.safetensors")):
        state |= load_file(file)
    bits: dict[str, Any] = {name: (array.dtype, array.shape, array.tobytes()) for name, array in state.items()}
    result = result_of(run)
    return bits | {"readings": [*readings(run).values()], "metrics": result["metrics"], "hash": result["weights"]}


def readings(run: Path) -> dict[int, dict[str, float]]:
    """The numbers of the usual lines of training, by their steps, without those that a save by the clock adds."""
    lines = {line["step"]: line for line in lines_of(run, split="train") if line["step"] in USUAL}
    return {step: {name: line[name] for name in NUMBERS if name in line} for step, line in lines.items()}


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if one[name] != other[name]]


@pytest.mark.parametrize(("framework", "case"), [(of, case) for of, cases in CASES.items() for case in cases])
def test_any_number_of_workers_has_the_same_bits(framework: str, case: str, runs: Runs) -> None:
    folder = runs(framework)
    first = bits_of(folder / "8" / case)
    assert len([name for name in first if name.startswith("virtual_workers/")]) >= 2
    for size in SIZES[1:]:
        assert not differing(first, bits_of(folder / str(size) / case)), f"{size} workers"


@pytest.mark.parametrize("framework", TASKS)
def test_virtual_workers_differ_in_what_is_their_own(framework: str, runs: Runs) -> None:
    """Else equal bits would say nothing about it. What they have in common is saved once."""
    state: dict[str, NDArray[Any]] = {}
    for file in latest_checkpoint(runs(framework) / "3" / "plain").glob("*.safetensors"):
        state |= load_file(file)
    assert [name for name in state if "frozen" in name and name.startswith("model/")]
    own = {name: array for name, array in state.items() if name.startswith("virtual_workers/")}
    assert len(own) == {"torch": 3, "tensorflow": 2}[framework], own.keys()
    for array in own.values():
        assert len(array) == 8
        assert len(np.unique(array.reshape(8, -1), axis=0)) == 8


def test_evaluate_has_the_buffers_that_no_state_dict_has(runs: Runs, tmp_path: Path) -> None:
    run = runs("torch") / "3" / "plain"
    evaluate = ["python", "-m", "hvdtrain", "evaluate", str(run), "--output", "evaluated.json"]
    finished = run_command(evaluate, DEADLINE_S, python_path(WORKER.parent), tmp_path)
    assert finished.returncode == 0, finished.tail()
    (measured,) = json.loads((tmp_path / "evaluated.json").read_text())["sets"].values()
    assert measured["measures"]["loss"] == pytest.approx(result_of(run)["metrics"]["loss"], rel=1e-5)


@pytest.mark.parametrize("framework", TASKS)
def test_a_run_that_moves_ends_with_the_bits_of_one_that_does_not(framework: str, runs: Runs) -> None:
    """From 8 workers to 3, 5, 2 and 1: three of the stops lie between two lines of metrics."""
    folder = runs(framework)
    moved, stayed = bits_of(folder / "1" / "moving"), bits_of(folder / "8" / "plain")
    assert result_of(folder / "1" / "moving")["steps"] == LAST
    assert set(differing(stayed, moved)) <= {"readings"}  # each folder has the lines of its own steps
    usual = readings(folder / "8" / "plain")
    assert {*usual} == {*USUAL}
    assert "grad_norm_peak" in usual[LAST]
    assert {step: line for size in SIZES for step, line in readings(folder / str(size) / "moving").items()} == usual
