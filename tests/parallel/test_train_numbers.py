"""What several ranks train is what one process trains: under every launcher, in both frameworks, and after a resume.

Each run is started once and looked at by several tests. Together they show every launcher at 2 and at 3 ranks.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.processes import python_path, run_command
from support.ranks import run_ranks
from support.runs import lines_of, result_of

WORKERS = Path(__file__).parent / "workers"
DEADLINE_S = 240
# 1,438 records in global batches of 50: 29 steps an epoch, the last one ragged, and 3 ranks cannot share 50 evenly.
SHORT = ("--global-batch-size", "50", "--max-steps", "40", "--progress", "none", "--report", "never")
# Sums in another order, after 40 steps of Adam. It divides by its epsilon of 1e-8 where gradients are near 0, so that
# there a difference in the last bit becomes a part of a step: single numbers differ by that, arrays as a whole do not.
# Measured: up to 2e-3 of an array's norm (weights 6e-5), where runs of 17 and of 40 steps are far apart.
TOLERANCE = 1e-2
ONE_STEP = 2e-3  # how far one step moves a weight


SHORT_RUNS = [
    ("torch", "horovodrun", 2),
    ("torch", "mpirun", 3),
    ("torch", "mpirun", 2),
    ("tensorflow", "horovodrun", 2),
    ("tensorflow", "horovodrun-gloo", 3),
]


@dataclass(frozen=True)
class Run:
    """What a run left behind."""

    folder: Path

    @property
    def result(self) -> dict[str, Any]:
        return result_of(self.folder)

    def state(self) -> dict[str, Any]:
        """All arrays of the newest checkpoint."""
        checkpoints = self.folder / "checkpoints"
        newest = checkpoints / (checkpoints / "latest").read_text().strip()
        return load_file(newest / "model.safetensors") | load_file(newest / "optimizer.safetensors")


Start = Callable[..., Run]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """train(framework, launcher, size, *options) → Run; launcher None is one process without any."""
    base = tmp_path_factory.mktemp("runs")
    env = {"HVDTRAIN_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}

    @functools.cache
    def start(framework: str, launcher: str | None, size: int, *flags: str, folder: str = "") -> Run:
        path = base / (folder or "-".join([framework, launcher or "alone", str(size), *flags]))
        options = ["--framework", framework] if framework != "torch" else []  # torch is the default
        command = ["-m", "hvdtrain", *options, "--output-dir", str(path), *flags]
        if launcher is None:
            finished = run_command(["python", *command], DEADLINE_S, env=env)
        else:
            finished = run_ranks(["python", *command], size, launcher, DEADLINE_S, env=env)
        assert finished.returncode == 0, finished.tail()
        assert "retracing" not in finished.stderr, finished.tail()
        return Run(path)

    return start


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
@pytest.mark.timeout(600)
def test_the_default_task_is_learned(framework: str, train: Start) -> None:
    """By two; that these train as one does is shown below."""
    result = train(framework, "horovodrun-gloo", 2).result
    assert (result["status"], result["world_size"]) == ("finished", 2)
    assert (result["framework"], result["task"]) == (framework, "digits")
    assert result["metrics"]["accuracy"] >= 0.97
    assert result["global_batch_size"] == 48
    assert (result["epochs"], result["samples_seen"]) == (12, 12 * 1438)
    assert result["weights"]["equal_on_all_ranks"]


@pytest.mark.parametrize(("framework", "launcher", "size"), SHORT_RUNS)
@pytest.mark.timeout(600)
def test_weights_after_40_steps_are_those_of_one_process(
    framework: str, launcher: str, size: int, train: Start
) -> None:
    """With a global batch that 3 ranks cannot share evenly, over a ragged last batch, into a second epoch."""
    alone, several = train(framework, None, 1, *SHORT), train(framework, launcher, size, *SHORT)
    assert_equal_runs(several, alone)
    assert (alone.result["world_size"], several.result["world_size"]) == (1, size)
    assert several.result["global_batch_size"] == alone.result["global_batch_size"] == 50
    assert several.result["first_step_loss"] == pytest.approx(alone.result["first_step_loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("framework", "first", "second"),
    [
        ("torch", ("horovodrun", 3), ("mpirun", 2)),
        ("tensorflow", ("mpirun", 3), ("horovodrun", 2)),
    ],
)
@pytest.mark.timeout(600)
def test_interrupted_by_3_ranks_and_resumed_by_2_equals_2_uninterrupted(
    framework: str, first: tuple[str, int], second: tuple[str, int], train: Start
) -> None:
    uninterrupted = train(framework, *second, *SHORT)
    folder = f"{framework}-resumed"
    shorter = [*SHORT, "--max-steps", "17"]
    stopped = train(framework, *first, *shorter, folder=folder)
    assert (stopped.result["status"], stopped.result["samples_seen"]) == ("stopped", 17 * 50)
    with pytest.raises(AssertionError):
        assert_equal_runs(stopped, uninterrupted)  # else the comparison below could not fail
    resumed = train(framework, *second, *SHORT, folder=folder)
    assert_equal_runs(resumed, uninterrupted)
    assert resumed.result["world_size"] == second[1]
    assert lines_of(resumed.folder, event="resumed")


def assert_equal_runs(one: Run, other: Run) -> None:
    """The same records, metrics, weights and optimizer state, to float tolerance."""
    assert one.result["samples_seen"] == other.result["samples_seen"]
    assert one.result["steps"] == other.result["steps"]
    for name, value in other.result["metrics"].items():
        assert one.result["metrics"][name] == pytest.approx(value, rel=1e-4), name
    ours, theirs = one.state(), other.state()
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert np.linalg.norm(ours[name] - array) <= TOLERANCE * np.linalg.norm(array), name
        if name.startswith("model/"):
            np.testing.assert_allclose(ours[name], array, rtol=1e-4, atol=ONE_STEP, err_msg=name)


def test_every_rank_s_own_weights_are_bit_equal_at_the_end(tmp_path: Path) -> None:
    """Read from the ranks' memories, not from result.json."""
    env = {**worker_path(), "DUMP_FOLDER": str(tmp_path)}
    command = ["python", "-m", "hvdtrain", "--task", "train_torch_tasks:Dumping", "--max-steps", "10"]
    finished = run_ranks(command, 3, "horovodrun-gloo", DEADLINE_S, env=env, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    first, *others = (dict(np.load(tmp_path / f"rank_{rank}.npz")) for rank in range(3))
    assert len(first) == 8
    for other in others:
        assert all(np.array_equal(array, other[name]) for name, array in first.items())


@pytest.mark.parametrize(
    ("module", "size", "option", "when"),
    [
        ("train_torch_tasks", 3, "--checkpoint-interval", "At the checkpoint of step 4"),
        ("train_keras_tasks", 2, "--check-weights-every", "After step 4"),
    ],
)
def test_a_rank_whose_weights_drift_apart_ends_the_run(
    module: str, size: int, option: str, when: str, tmp_path: Path
) -> None:
    """In its third update; the comparison after the second one is the last that has found them equal."""
    fault = {"place": "weights", "kind": "change", "rank": 1, "call": 3, "stamp": str(tmp_path / "stamp")}
    env = {**worker_path(), "TRAIN_FAULT": json.dumps(fault)}
    command = ["python", "-m", "hvdtrain", "--task", f"{module}:Diverging", "--max-steps", "10", option, "2"]
    finished = run_ranks(
        [*command, "--output-dir", str(tmp_path / "out")], size, "mpirun", DEADLINE_S, env=env, cwd=tmp_path
    )
    assert finished.returncode == 1, finished.tail()
    assert finished.stderr.count(f"{when} the weights of rank 1 differ from rank 0's.") == 1, finished.tail()
    told = r"They were equal after step 2\. 1 of 8 arrays differ: '\S+' in 1 of [\d,]+ numbers, by 0\.001 at most\."
    assert re.search(told, finished.stderr), finished.tail()
    saved = {path.name for path in (tmp_path / "out").glob("checkpoints/*")}
    assert saved == ({"latest", "step_00000002"} if option == "--checkpoint-interval" else set())
    assert not list(tmp_path.rglob("result.json"))


def worker_path() -> dict[str, str]:
    return python_path(WORKERS)
