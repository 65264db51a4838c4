"""What a run folder says of how its run began, and what the same command does there after a loss at any moment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hvdtrain.algorithms.early_stopping import Best, ValidationHistory
from hvdtrain.checkpoints.format import Checkpoint, Position
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.run.begun import begin_in, holds_run, resume_now


class Killed(BaseException):
    """Nothing catches it, as nothing catches a kill."""


def checkpoint(step: int, best: Best | None = None) -> Checkpoint:
    position = Position(step, step)
    history = replace(position.history, best=best) if best is not None else ValidationHistory()
    return Checkpoint({"model/w": np.full(3, step)}, replace(position, history=history), {})


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A run with two checkpoints, of which the first is the best, and a record of used data, all read-only."""
    run = tmp_path / "first"
    best = Best("loss", 1.0, 3, 0)
    store = CheckpointStore(run / "checkpoints", keep=5)
    store.save(checkpoint(3, best))
    store.save(checkpoint(5, best))
    (run / "audit").mkdir()
    (run / "audit" / "segment.bin").write_bytes(b"used")
    (run / "audit" / "ledger.jsonl").write_text('{"end": 5}\n')
    (run / "audit").chmod(0o555)
    return run


def begin(origin: Path, folder: Path) -> None:
    named = CheckpointStore(origin / "checkpoints", keep=5).newest()
    folder.mkdir(exist_ok=True)
    begin_in(folder, CheckpointStore(folder / "checkpoints", keep=1), str(origin), named)


def config(resume: str, folder: Path) -> TrainConfig:
    return replace(TrainConfig(), resume=resume, output_dir=str(folder))


def killing_at(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill before that one of all operations that change names in a folder, from 0."""
    left = [count]

    def guarded(operation: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return operation(*arguments, **named)

        return call

    for module, name in ((os, "replace"), (Path, "rename"), (shutil, "copyfile"), (Path, "mkdir")):
        monkeypatch.setattr(module, name, guarded(getattr(module, name)))


def test_a_start_that_is_killed_at_any_moment_is_made_again_by_the_same_command(
    origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards the folder has all: the checkpoint, the best one, and the record of used data."""
    at, was_killed, found = 0, True, []
    while was_killed:
        folder = tmp_path / f"second_{at}"
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "checkpoints" / "mine.txt").touch()
        with monkeypatch.context() as patch:
            killing_at(at, patch)
            try:
                begin(origin, folder)
                was_killed = False
            except Killed:
                pass
        assert resume_now(config("auto", folder)) in (str(origin), "auto")
        resume = resume_now(config(str(origin), folder))
        found.append(resume)
        if resume != "auto":
            assert not holds_run(folder), "the same command would be refused"
            begin(origin, folder)
        store = CheckpointStore(folder / "checkpoints", keep=1)
        assert [path.name for path in store.paths()] == ["step_00000003", "step_00000005"]
        assert store.named("latest").name == "step_00000005"
        assert sorted(path.name for path in (folder / "audit").iterdir()) == ["ledger.jsonl", "segment.bin"]
        assert resume_now(config(str(origin), folder)) == "auto"
        assert holds_run(folder)
        assert (folder / "checkpoints" / "mine.txt").exists()
        assert (folder / "audit").stat().st_mode & 0o200, "the origin is read-only, and its copy is written to"
        at += 1
    assert len(found) > 8, "too few operations: were they counted?"


def test_another_command_does_not_go_on_with_it(origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "second"
    begin(origin, folder)
    assert resume_now(config(str(tmp_path / "other"), folder)) == str(tmp_path / "other")
    assert resume_now(config("never", folder)) == "never"
    own = str(folder / "checkpoints" / "step_00000003")
    assert resume_now(config(own, folder)) == own
    monkeypatch.setenv("HVDTRAIN_RESTART", "1")
    assert resume_now(config("never", folder)) == "never", "it would be refused, had nobody died"
    assert resume_now(config("never", tmp_path / "lost")) == "auto", "the disk is lost, and there may be a copy"


@pytest.mark.parametrize("resume", ["never", "own"])
def test_a_job_goes_on_with_what_it_has_begun(resume: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a launcher that starts it again; another job of the same command does not."""
    folder = tmp_path / "run"
    store = CheckpointStore(folder / "checkpoints", keep=5)
    for step in (3, 5):
        store.save(checkpoint(step))
    asked = str(folder / "checkpoints" / "step_00000003") if resume == "own" else resume
    monkeypatch.setenv("HVDTRAIN_JOB_NAME", "this")
    assert resume_now(config(asked, folder)) == asked
    begin_in(folder, store, asked, checkpoint(3) if resume == "own" else None)
    assert store.named("latest").name == ("step_00000003" if resume == "own" else "step_00000005")
    assert resume_now(config(asked, folder)) == asked, "nobody was lost: it is another call of a script"
    monkeypatch.setenv("HVDTRAIN_RESTART", "1")
    assert resume_now(config(asked, folder)) == "auto"
    begin_in(folder, store, "auto", None)
    assert resume_now(config(asked, folder)) == "auto"
    monkeypatch.setenv("HVDTRAIN_JOB_NAME", "that")
    assert resume_now(config(asked, folder)) == asked


def test_a_copy_of_an_own_checkpoint_takes_the_place_of_what_is_there(tmp_path: Path) -> None:
    """The one of that step may be damaged, or of a branch that was left; what --resume names is trained on."""
    folder = tmp_path / "run"
    store = CheckpointStore(folder / "checkpoints", keep=5)
    path = store.save(checkpoint(5))
    backup = shutil.copytree(path, folder / "backup" / path.name)
    named = Checkpoint({"model/w": np.full(3, 7.0)}, Position(5, 5), {})
    for resume, weight in ((path, 5.0), (folder, 5.0), (backup, 7.0)):
        begin_in(folder, store, str(resume), named)
        newest = store.newest()
        assert newest is not None
        assert newest.state["model/w"].tolist() == [weight] * 3
