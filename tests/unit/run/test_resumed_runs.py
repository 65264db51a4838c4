"""`hvdtrain` in the folder of an earlier run, or from its checkpoints: what goes on, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from support.commands import tree
from support.digits_runs import Command, flip
from support.runs import result_of

from hvdtrain import activity
from hvdtrain.checkpoints.format import Checkpoint, Position
from hvdtrain.checkpoints.resume import require_same_training
from hvdtrain.errors import UsageError
from hvdtrain.history.overview import overview
from hvdtrain.run.start import warn_of_lost_updates
from hvdtrain.tasks.task_registry import argument_defaults
from hvdtrain.world_channel import WORLD_VARIABLE

MODEL = "checkpoints/step_00000002/model.safetensors"


OTHER_TRAININGS = {
    "seed": (["--seed", "7"], "is from a run with seed 42, not 7"),
    "batch": (["--global-batch-size", "16"], "is from a run with global batch size 32, not 16"),
    "task": (["--task", "own:Other"], "is from the task 'digits', not 'own:Other'"),
    "data": (["--data.dir", "digits"], "is from the data set with fingerprint "),
    "model": (["--task-args.width", "8"], "is from a task built with width 32, not width 8."),
    "never": (["--resume", "never"], "already holds a run"),
}


def test_a_run_folder_of_another_training_is_refused_and_left_as_it_is(
    hvdtrain: Command, run_folder: Path, digits: Path
) -> None:
    sorted(digits.glob("train-*"))[0].unlink()
    before = tree(run_folder)
    answers = hvdtrain(*(["--output-dir", "out", *argv] for argv, _ in OTHER_TRAININGS.values()))
    for ended, (_, fact) in zip(answers, OTHER_TRAININGS.values(), strict=True):
        ended.require_refusal(fact)
    assert tree(run_folder) == before


def test_a_named_checkpoint_that_is_refused_leaves_no_folder(
    hvdtrain: Command, tmp_path: Path, run_folder: Path
) -> None:
    before = tree(tmp_path)
    step = str(run_folder / "checkpoints" / "step_00000002")
    (run_folder / "empty").mkdir()
    answers = hvdtrain(
        ["--resume", step, "--seed", "7"],
        ["--resume", "nowhere"],
        ["--resume", str(run_folder / "empty"), "--output-dir", "new"],
    )
    answers[0].require_refusal("is from a run with seed 42, not 7")
    answers[1].require_refusal("There is no folder nowhere.")
    answers[2].require_refusal("holds no checkpoint")
    assert tree(tmp_path) == before
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "new").exists()


def test_a_named_checkpoint_does_not_go_on_in_the_folder_of_another_run(
    hvdtrain: Command, tmp_path: Path, run_folder: Path
) -> None:
    (other,) = hvdtrain(["--output-dir", "other", "--max-steps", "1"])
    assert other.code == 0, other
    before = tree(run_folder)
    (refused,) = hvdtrain(["--resume", "other", "--output-dir", "out", "--max-steps", "3"])
    refused.require_refusal("already holds a run")
    assert tree(run_folder) == before
    step = str(run_folder / "checkpoints" / "step_00000002")
    (own,) = hvdtrain(["--resume", step, "--output-dir", "out", "--max-steps", "3"])
    assert own.code == 0, own
    assert (tmp_path / "other").is_dir()


def test_an_argument_of_the_task_that_is_its_default_is_the_same_as_none(hvdtrain: Command, run_folder: Path) -> None:
    width = ["--task-args.width", "32"]
    given, left_out = hvdtrain(
        ["--output-dir", "out", "--max-steps", "3", *width], ["--output-dir", "out", "--max-steps", "4"]
    )
    assert (given.code, left_out.code) == (0, 0), (given, left_out)
    assert result_of(run_folder)["steps"] == 4


def test_arguments_of_a_checkpoint_are_compared_with_the_defaults_of_today() -> None:
    """Checkpoints have only the arguments that were given, and what JSON makes of them."""

    class Shaped:
        def __init__(self, depth: int, sizes: tuple[int, ...] = (8, 4), of: object = print) -> None: ...

    defaults = argument_defaults(Shaped)  # type: ignore[arg-type]
    assert defaults == {"sizes": [8, 4]}
    about: dict[str, Any] = {**dict.fromkeys(["mode", "optimizer", "block_order"]), "task_defaults": defaults}

    def resume(saved: dict[str, Any], wanted: dict[str, Any]) -> None:
        checkpoint = Checkpoint({}, Position(step=7), {**about, "task_args": saved})
        require_same_training(checkpoint, {**about, "task_args": wanted})

    resume({"depth": 1}, {"depth": 1, "sizes": [8, 4]})
    resume({"depth": 1, "sizes": [8, 4]}, {"depth": 1})
    with pytest.raises(UsageError, match=r"built with sizes \[8, 4\], not sizes \[8\]\."):
        resume({"depth": 1}, {"depth": 1, "sizes": [8]})
    with pytest.raises(UsageError, match=r"built with no arguments, not old 1\."):
        resume({"depth": 1}, {"depth": 1, "old": 1})


def test_two_jobs_do_not_share_a_folder(hvdtrain: Command, run_folder: Path) -> None:
    before = tree(run_folder)
    with FileLock(run_folder / ".lock"):
        (refused,) = hvdtrain(["--output-dir", "out", "--max-steps", "3"])
    refused.require_refusal("Another job is running in")
    assert tree(run_folder) == before


def test_a_resumed_run_knows_its_first_loss(hvdtrain: Command, run_folder: Path) -> None:
    first = result_of(run_folder)
    with (run_folder / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"split": "validation", "ep')  # as a run leaves it that was killed while it wrote
    (ended,) = hvdtrain(["--output-dir", "out", "--max-steps", "3"])
    assert ended.code == 0, ended
    later = result_of(run_folder)
    assert later["steps"] == 3
    assert later["first_step_loss"] == first["first_step_loss"] is not None


def test_a_run_with_nothing_left_to_train_keeps_its_result(hvdtrain: Command, run_folder: Path) -> None:
    before = (run_folder / "result.json").read_bytes()
    (ended,) = hvdtrain(["--output-dir", "out", "--max-steps", "2"])
    assert ended.code == 0, ended
    assert (run_folder / "result.json").read_bytes() == before
    other = {**json.loads(before), "goodput": {**json.loads(before)["goodput"], "restarts": [{"cause": "of a loss"}]}}
    (run_folder / "result.json").write_text(json.dumps(other))
    (ended,) = hvdtrain(["--output-dir", "out", "--max-steps", "2"])
    assert ended.code == 0, ended
    told = json.loads((run_folder / "result.json").read_text())
    assert told["goodput"]["restarts"] == [], "restarts are those that metrics.jsonl tells of now"
    assert {**told, "goodput": None} == {**json.loads(before), "goodput": None}


def test_less_than_is_trained_already_is_said_to_be_done(hvdtrain: Command, run_folder: Path) -> None:
    (ended,) = hvdtrain(["--output-dir", "out", "--max-steps", "1"])
    assert ended.code == 0, ended
    assert "2 steps are trained already; nothing is left to train of --max-steps 1\n" in ended.stderr
    assert "training from step" not in ended.stderr
    view = overview(run_folder)
    assert (view.steps, view.total_steps) == (2, 2)


@pytest.mark.parametrize("given", ["out", "out/checkpoints", "out/checkpoints/step_00000002"])
def test_a_named_checkpoint_goes_on_elsewhere(hvdtrain: Command, tmp_path: Path, run_folder: Path, given: str) -> None:
    before = tree(run_folder)
    (ended,) = hvdtrain(["--resume", given, "--output-dir", "new", "--max-steps", "3"])
    assert ended.code == 0, ended
    assert result_of(tmp_path / "new")["samples_seen"] == 96
    assert tree(run_folder) == before


def test_a_resumed_run_does_not_keep_the_checkpoint_in_memory(hvdtrain: Command) -> None:
    run = ["--task", "own:CountsCheckpoints", "--output-dir", "run"]
    ended = hvdtrain(run, [*run, "--max-steps", "3"], [*run[:2], "--resume", "run", "--max-steps", "3"])
    assert [one.code for one in ended] == [0, 0, 0], ended
    assert ["in memory: 0\n" in one.stdout for one in ended] == [True, True, True], ended


def test_a_crash_after_going_back_does_not_return_to_the_branch_that_was_left(
    hvdtrain: Command, tmp_path: Path
) -> None:
    flags = ["--task", "own:Crashing", "--output-dir", "back", "--checkpoint-interval", "1"]
    (whole,) = hvdtrain([*flags, "--max-steps", "3"])
    assert whole.code == 0, whole
    (tmp_path / "crash").touch()
    (crashed,) = hvdtrain([*flags, "--max-steps", "4", "--resume", "back/checkpoints/step_00000001"])
    assert (crashed.code, "cannot decode now" in crashed.stderr) == (1, True), crashed
    (tmp_path / "crash").unlink()
    (ended,) = hvdtrain([*flags, "--max-steps", "4", "--resume", "auto"])
    assert ended.code == 0, ended
    assert "training from step 1 to " in ended.stderr, ended


def test_a_run_that_begins_with_anothers_checkpoint_goes_on_from_it_after_a_crash(
    hvdtrain: Command, tmp_path: Path
) -> None:
    """Also before its first checkpoint, by the same command."""
    flags = ["--task", "own:Crashing", "--checkpoint-interval", "1"]
    (whole,) = hvdtrain([*flags, "--output-dir", "first", "--max-steps", "2"])
    assert whole.code == 0, whole
    (tmp_path / "crash").touch()
    second = [*flags, "--output-dir", "second", "--max-steps", "4"]
    (crashed,) = hvdtrain([*second, "--resume", "first"])
    assert (crashed.code, "cannot decode now" in crashed.stderr) == (1, True), crashed
    (tmp_path / "crash").unlink()
    third = [*second[:-1], "5", "--resume", "first"]
    ended, again = hvdtrain([*second, "--resume", "first"], third)
    assert (ended.code, again.code) == (0, 0), (ended, again)
    assert "training from step 2 to " in ended.stderr, ended
    assert "training from step 4 to " in again.stderr, again


def test_checkpoints_alone_are_a_run(hvdtrain: Command, tmp_path: Path, run_folder: Path) -> None:
    """A new run would remove them."""
    shutil.copytree(run_folder / "checkpoints", tmp_path / "copied" / "checkpoints")
    before = tree(tmp_path / "copied")
    for resume in ("never", str(run_folder)):
        (refused,) = hvdtrain(["--output-dir", "copied", "--resume", resume])
        refused.require_refusal("already holds a run")
    assert tree(tmp_path / "copied") == before


@pytest.mark.parametrize(("world", "reached", "is_told"), [("2", 204, True), ("1", 204, False), ("2", 0, False)])
def test_updates_that_are_lost_with_a_host_are_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    world: str,
    reached: int,
    is_told: bool,
) -> None:
    monkeypatch.setenv(WORLD_VARIABLE, world)
    monkeypatch.setattr(activity.now, "reached", reached)
    warn_of_lost_updates(tmp_path, "from the beginning")
    assert ("had done 204 updates, and training begins again from the beginning" in caplog.text) == is_told


def test_lost_checkpoints_are_told(hvdtrain: Command, run_folder: Path) -> None:
    shutil.rmtree(run_folder / "checkpoints")
    (ended,) = hvdtrain(["--output-dir", "out", "--max-steps", "1"])
    assert ended.code == 0, ended
    assert "tells of 2 updates, and there is no checkpoint: training begins again" in ended.stderr


def test_damaged_checkpoints(hvdtrain: Command, run_folder: Path) -> None:
    """The newest damaged: go on from the one before, saying so to people and in the log. All damaged: refuse."""
    (longer,) = hvdtrain(["--output-dir", "out", "--max-steps", "4"])
    assert longer.code == 0, longer
    flip(run_folder / "checkpoints" / "step_00000004" / "model.safetensors", 100)
    (ended,) = hvdtrain(["--output-dir", "out", "--max-steps", "4"])
    assert ended.code == 0, ended
    assert "training from step 2 to " in ended.stderr
    said = "skipping a damaged checkpoint: "
    assert said in ended.stderr
    assert said in (run_folder / "logs" / "rank_0.log").read_text()
    for path in (run_folder / "checkpoints").glob("step_*"):
        flip(path / "model.safetensors", 100)
    before = tree(run_folder)
    (refused,) = hvdtrain(["--output-dir", "out", "--max-steps", "4"])
    assert refused.code == 2
    assert "Every checkpoint in " in refused.stderr
    assert "Traceback" not in refused.stderr
    assert tree(run_folder) == before
