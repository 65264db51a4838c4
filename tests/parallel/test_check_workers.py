"""`--check-workers`: a worker that computes wrongly is named; one that does not is not, and no bit changes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.processes import Finished, python_path, run_command
from support.runs import result_of

WORKERS = Path(__file__).parent / "workers"
DEADLINE_S = 200
QUIET = ["--progress", "none", "--report", "never"]
NOBODY = "9"
OTHER_HOSTS = "HINT: start the job again with --resume auto and other hosts in place of localhost."


def train(cwd: Path, task: str, size: int, wrong: str, *options: str, launch: tuple[str, ...] = ("local",)) -> Finished:
    command = ["python", "-m", "hvdtrain", "launch", *launch, "-np", str(size), "--", "train", "--task", task]
    command += ["--virtual-workers", "6", "--epochs", "1", "--output-dir", "out", *QUIET, *options]
    variables = {"WRONG": wrong, **python_path(WORKERS)}
    return run_command(command, DEADLINE_S, variables, cwd, "warm workers")


ONE_HOST = ("ssh", "-H", "localhost:3", "--max-restarts", "2", "--pass-env", "WRONG", "--pass-env", "PYTHONPATH")


@pytest.mark.parametrize(
    ("task", "weight", "launch"),
    [("wrong_torch:Wrong", "5.weight", ONE_HOST), ("wrong_keras:Wrong", "unequal/filters/kernel", ("local",))],
)
def test_the_worker_that_two_others_contradict_is_named(
    task: str, weight: str, launch: tuple[str, ...], tmp_path: Path
) -> None:
    """A restart would not use its host: where there is no other one, the job ends."""
    finished = train(tmp_path, task, 3, "1", "--check-workers", "every=5", launch=launch)
    assert finished.returncode == 1, finished.tail()
    text = finished.stdout + finished.stderr
    assert "rank 1 on " in text, finished.tail()
    assert "has computed other gradients than two other workers" in text, finished.tail()
    assert weight in text, finished.tail()
    if launch == ONE_HOST:
        ends = "0 slots are left, 3 workers are needed. localhost is left out: a worker there has computed wrongly.\n"
        assert finished.stderr.endswith(f"{ends}{OTHER_HOSTS}\n"), finished.tail()


def test_of_two_workers_both_are_named(tmp_path: Path) -> None:
    finished = train(tmp_path, "wrong_torch:Wrong", 2, "0", "--check-workers", "every=5")
    assert finished.returncode == 1, finished.tail()
    assert "rank 0 on " in finished.stderr, finished.tail()
    assert "have computed different gradients for the same virtual workers" in finished.stderr, finished.tail()


def test_where_others_may_train_on_the_wrong_one_ends_alone(tmp_path: Path) -> None:
    """They go on from before the last sound check, of step 5. Another worker would use the same processor."""
    finished = train(
        tmp_path,
        "wrong_torch:Wrong",
        3,
        "1",
        "--check-workers",
        "every=5",
        *("--checkpoint-interval", "2", "--keep-checkpoints", "9"),
        launch=("local", "--min-workers", "2", "--max-restarts", "3"),
    )
    assert finished.returncode == 0, finished.tail()
    assert "2 workers train on" in finished.stderr, finished.tail()
    assert "no further worker is started in its place" in finished.stderr, finished.tail()
    assert "joined" not in finished.stderr, finished.tail()
    assert result_of(tmp_path / "out")["status"] == "finished"
    lines = [json.loads(line) for line in (tmp_path / "out" / "audit" / "ledger.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["event"] == "started"] == [0, 4]
    assert "training resumes from the checkpoint of step 4: later ones may be wrong" in finished.output, finished.tail()


def test_a_pass_computes_the_same_bits_in_each_graph_that_it_is_a_part_of(tmp_path: Path) -> None:
    """A worker that is alone repeats its own passes. TensorFlow optimizes graphs as wholes, a transformer's too."""
    letters = np.random.default_rng(7).integers(97, 123, 20_000).astype(np.uint8)
    (tmp_path / "letters.txt").write_bytes(letters.tobytes())
    sizes = "--task-args.context 32 --task-args.width 32 --task-args.heads 2 --task-args.blocks 1 --max-steps 3"
    command = ["python", "-m", "hvdtrain", "train", "--framework", "tensorflow", "--task", "text", *sizes.split()]
    command += ["--data.dir", ".", "--virtual-workers", "2", "--check-workers", "every=1", "--output-dir", "out"]
    finished = run_command([*command, *QUIET], DEADLINE_S, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    assert result_of(tmp_path / "out")["steps"] == 3


def hashed(cwd: Path, task: str, wrong: str, *options: str) -> str:
    """A run that ends, with hashes; returns the hash of its weights."""
    cwd.mkdir(exist_ok=True)
    finished = train(cwd, task, 3, wrong, "--hash-every", "1", *options)
    assert finished.returncode == 0, finished.tail()
    return str(result_of(cwd / "out")["weights"]["sha256"])


def test_a_check_changes_no_bit(tmp_path: Path) -> None:
    checked = hashed(tmp_path / "checked", "wrong_torch:Wrong", NOBODY, "--check-workers", "every=1")
    assert checked == hashed(tmp_path / "unchecked", "wrong_torch:Wrong", NOBODY)


@pytest.mark.parametrize("task", ["remembering_torch:Remembering", "remembering_keras:Remembering"])
def test_a_pass_is_repeated_with_what_its_virtual_worker_has_made_of_earlier_records(task: str, tmp_path: Path) -> None:
    """So no worker is taken for a wrong one whose passes read buffers that differ from worker to worker."""
    hashed(tmp_path, task, NOBODY, "--check-workers", "every=4", "--max-steps", "12")


@pytest.mark.parametrize("task", ["wrong_torch:Wrong", "wrong_keras:Wrong"])
def test_hashes_tell_which_virtual_workers_have_computed_something_else(task: str, tmp_path: Path) -> None:
    """Rank 1 of 3 has virtual workers 2 and 3 of 6. Its first wrong pass is one of update 11, or of 1 in Keras."""
    hashed(tmp_path / "sound", task, NOBODY, "--max-steps", "12")
    hashed(tmp_path / "wrong", task, "1", "--max-steps", "12")
    command = ["python", "-m", "hvdtrain", "compare", "--json", "sound/out", "wrong/out"]
    bits = json.loads(run_command(command, DEADLINE_S, cwd=tmp_path).stdout)["bits"]
    assert bits["gradients_of"] == [2, 3]
    assert bits["first_difference"] == (11 if "torch" in task else 1)
