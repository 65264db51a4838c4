"""The best checkpoint stays, and `best` points to it. Interruptions change neither that nor early stopping."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.numpy_training import Data, NumpyTask, Run, Setting, train
from support.ranks import ThreadCommunicator, all_well, run_on_ranks

from hvdtrain.algorithms.early_stopping import Best, EarlyStopping, ValidationHistory
from hvdtrain.checkpoints.format import Checkpoint, Position, read_checkpoint, write_position
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.comm.communicator import Communicator, SerialCommunicator
from hvdtrain.engine import events
from hvdtrain.engine.limits import RunLimits
from hvdtrain.engine.stop_vote import StopRequest, never_asked
from hvdtrain.named_arrays import State
from hvdtrain.topology import Topology

STEPS, BATCHES = 3, 2  # of an epoch of training, and of a validation
EPOCHS = 6


class ChaoticTask(NumpyTask):
    """Measures a "score" of the weights that goes up and down."""

    def measure(self, model: dict[str, Any], batch: Any) -> dict[str, Any]:
        measures = super().measure(model, batch)
        score = np.floor(10 * (1 + np.sin(1e4 * model["weights"].sum())))  # whole numbers: ties come about
        return {**measures, "score": np.full(len(batch["label"]), score)}


@pytest.fixture(autouse=True, scope="module")
def no_fsync() -> Iterator[None]:
    """Only a power cut could tell the difference, and it takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)  # noqa: ARG005
        yield


def alone() -> Communicator:
    return SerialCommunicator(Topology.single())


def after(calls: int) -> StopRequest:
    """Asks to stop from its so-manieth call on: one comes before training, and one after each batch of one process."""
    count = 0

    def asked() -> str | None:
        nonlocal count
        count += 1
        return "request" if count > calls else None

    return asked


def run(setting: Setting, comm: Communicator, limits: RunLimits, asked: StopRequest = never_asked) -> Run:
    """From the newest checkpoint of the folder, or from the beginning."""
    newest = setting.store().newest()
    start: tuple[Position | None, State | None] = (newest.position, newest.state) if newest else (None, None)
    return train(setting, comm, limits, *start, asked)


def left(setting: Setting) -> tuple[list[str], str, str]:
    """Kept checkpoints, and the pointers."""
    folder = setting.folder / "checkpoints"
    best = folder / "best"
    return (
        [path.name for path in setting.store().paths()],
        (folder / "latest").read_text(),
        best.read_text() if best.exists() else "",
    )


def chaotic(data: Data, folder: Path, **options: Any) -> Setting:
    return Setting(data, folder, task=ChaoticTask(), total_steps=STEPS * EPOCHS, **options)


@given(
    seed=st.integers(0, 50),
    keep=st.integers(1, 4),
    patience=st.none() | st.integers(1, 4),
    stops=st.lists(st.integers(1, 12), min_size=1, max_size=6),
)
@settings(max_examples=15, deadline=None)
def test_stopped_anywhere_and_started_again(
    data: Data,
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    keep: int,
    patience: int | None,
    stops: list[int],
) -> None:
    """The same best, the same early stop, the same kept folders; `stops` are calls to `asked` of one start each."""
    folder, limits = tmp_path_factory.mktemp("law"), RunLimits(EPOCHS, checkpoint_interval=1)
    judge = EarlyStopping("score", "max", patience)
    setting = chaotic(data, folder / "whole", seed=seed, keep=keep, early_stopping=judge)
    whole = run(setting, alone(), limits)
    assert whole.outcome.finished
    here = replace(setting, folder=folder / "parts")
    part = None
    for calls in stops:
        part = run(here, alone(), limits, after(calls))
    if not (part and part.outcome.finished):
        part = run(here, alone(), limits)
    assert part.outcome == whole.outcome
    assert left(here) == left(setting)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("keep", [1, 2])
def test_resumed_in_another_folder_from_every_checkpoint(data: Data, tmp_path: Path, size: int, keep: int) -> None:
    judge = EarlyStopping("score", "max", patience=3)
    setting = chaotic(data, tmp_path / "whole", keep=1000, early_stopping=judge)
    limits = RunLimits(EPOCHS, checkpoint_interval=1)
    whole = all_well(run_on_ranks(size, lambda comm: run(setting, comm, limits)))[0]
    best = whole.outcome.best
    assert best is not None
    for path in setting.store().paths():
        saved = read_checkpoint(path)
        here = replace(setting, folder=tmp_path / path.name, keep=keep)
        here.store().adopt(saved, setting.folder / "checkpoints")
        here.store().resume_from(saved.position)

        def go_on(comm: ThreadCommunicator, here: Setting = here, saved: Checkpoint = saved) -> Run:
            return train(here, comm, limits, saved.position, saved.state)

        resumed = all_well(run_on_ranks(size, go_on))
        assert [one.outcome for one in resumed] == [whole.outcome] * size
        if resumed[0].events.of(events.CheckpointDurable):
            newest = [f"step_{s:08d}" for s in range(saved.position.step, whole.outcome.step + 1)][-keep:]
            assert left(here)[0] == sorted({f"step_{best.step:08d}", *newest})
            assert left(here)[2] == f"step_{best.step:08d}\n"


def test_the_last_validation_is_stopped_and_done_by_the_next_run(data: Data, tmp_path: Path) -> None:
    """What it finds is in the checkpoint, which is there already."""
    setting, limits = chaotic(data, tmp_path, keep=1), RunLimits(1)
    stopped = run(setting, alone(), limits, after(2 + STEPS))
    assert (stopped.outcome.step, stopped.outcome.finished) == (STEPS, False)
    assert left(setting) == (["step_00000003"], "step_00000003\n", "")
    resumed = run(setting, alone(), limits)
    assert [type(event).__name__ for event in resumed.events.events] == [
        *["RunStarted", "EvalStarted", "Evaluated", "EpochEnded", "CheckpointStarted", "CheckpointDurable", "RunEnded"]
    ]
    assert left(setting) == (["step_00000003"], "step_00000003\n", "step_00000003\n")
    newest = setting.store().newest()
    assert newest is not None
    assert newest.position.history.best == resumed.outcome.best is not None
    again = run(setting, alone(), limits)
    assert again.events.of(events.CheckpointDurable) == []
    assert again.outcome == resumed.outcome


@given(keep=st.integers(1, 3), values=st.lists(st.integers(0, 5), min_size=1, max_size=8))
@settings(max_examples=20, deadline=None)
def test_the_last_k_stay_and_the_best(tmp_path_factory: pytest.TempPathFactory, keep: int, values: list[int]) -> None:
    store = CheckpointStore(tmp_path_factory.mktemp("keep"), keep)
    judge, history = EarlyStopping("m", "max"), ValidationHistory()
    for step, value in enumerate(values, start=1):
        history = judge.after(history, step, step, {"m": float(value)})
        path = store.save(checkpoint(step, history))
        assert history.best is not None
        best = f"step_{history.best.step:08d}"
        newest = [f"step_{s:08d}" for s in range(1, step + 1)][-keep:]
        assert [one.name for one in store.paths()] == sorted({best, *newest})
        assert (path.parent / "best").read_text() == f"{best}\n"
        assert read_checkpoint(path).position.history == history


def checkpoint(step: int, history: ValidationHistory) -> Checkpoint:
    return Checkpoint(
        {"model/w": np.full(3, float(step)), "optimizer/m": np.zeros(2)}, Position(step, step, history), {}
    )


def history_of(step: int) -> ValidationHistory:
    return ValidationHistory(Best("m", 1.0, step, 0), 1.0, 0, step, "max m")


def test_a_late_validation_changes_the_manifest_and_no_weights(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    store.save(checkpoint(1, history_of(1)))
    path = store.save(checkpoint(2, history_of(1)))
    weights = (path / "model.safetensors").stat().st_mtime_ns
    position = Position(2, 2, history_of(2))
    assert store.put(position, None, lambda path: write_position(path, position)) == path
    assert (path / "model.safetensors").stat().st_mtime_ns == weights
    assert read_checkpoint(path).position == Position(2, 2, history_of(2))
    assert (tmp_path / "best").read_text() == "step_00000002\n"
    assert store.paths() == [path]


def test_going_on_sets_right_a_pointer_that_a_killed_run_left_behind(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=3)
    for step in (1, 2):
        store.save(checkpoint(step, history_of(step)))
    (tmp_path / "best").write_text("step_00000001\n")
    store.resume_from(Position(2, 2, history_of(2)))
    assert (tmp_path / "best").read_text() == "step_00000002\n"


@pytest.mark.parametrize("best", [None, 1])
def test_the_value_at_the_end_of_an_interrupted_run_stays_the_best_until_the_next_save(
    tmp_path: Path, best: int | None
) -> None:
    """The same command again, which trains nothing, leaves both as they are; a run that goes further back does not."""
    store = CheckpointStore(tmp_path, keep=3)
    of_run = ValidationHistory() if best is None else history_of(best)
    store.save(checkpoint(1, of_run))
    store.save(checkpoint(2, of_run), best=history_of(2).best)
    store.resume_from(Position(2, 2, of_run))
    assert (tmp_path / "best").read_text() == "step_00000002\n"
    store.resume_from(Position(1, 1, of_run))
    assert (tmp_path / "best").exists() == (best is not None)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_best_checkpoint_that_is_gone_is_said(
    tmp_path: Path, damaged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """There, and where the run began; `best` then points nowhere, rather than to nothing."""
    origin = CheckpointStore(tmp_path / "origin", keep=3)
    path = origin.save(checkpoint(1, history_of(1)))
    if damaged:
        (path / "model.safetensors").write_bytes(b"")
    else:
        shutil.rmtree(path)
    store = CheckpointStore(tmp_path / "here", keep=3)
    position = Position(2, 2, history_of(1))
    begun = Checkpoint({"model/w": np.ones(1)}, position, {})
    store.adopt(begun, tmp_path / "origin")
    store.resume_from(position)
    with caplog.at_level(logging.WARNING, "hvdtrain"):
        store.save(Checkpoint({"model/w": np.ones(1)}, position, {}))
    assert not (tmp_path / "here" / "best").exists()
    assert "the best checkpoint, of step 1, is not in" in caplog.text


def test_a_validation_inside_an_epoch_is_told_and_forgotten(data: Data, tmp_path: Path) -> None:
    """`max_steps` brings it about, an uninterrupted run has none there."""
    setting = chaotic(data, tmp_path, early_stopping=EarlyStopping("loss", "min", patience=1))
    stopped = run(setting, alone(), RunLimits(EPOCHS, max_steps=2))
    assert stopped.outcome.best is not None
    assert (stopped.outcome.best.step, left(setting)[2]) == (2, "step_00000002\n")
    newest = setting.store().newest()
    assert newest is not None
    assert newest.position.history == ValidationHistory()
    resumed = run(setting, alone(), RunLimits(EPOCHS, max_steps=3))
    assert resumed.outcome.best is not None
    assert (resumed.outcome.best.step, left(setting)[2]) == (3, "step_00000003\n")


def early(data: Data, folder: Path, **limits: Any) -> tuple[Setting, RunLimits]:
    """No second validation improves by so much."""
    setting = chaotic(data, folder, early_stopping=EarlyStopping("loss", "min", patience=2, min_delta=1e6))
    return setting, RunLimits(EPOCHS, **limits)


def test_a_run_that_stopped_early_is_finished_and_does_not_train_on(data: Data, tmp_path: Path) -> None:
    setting, limits = early(data, tmp_path)
    first = run(setting, alone(), limits)
    told = events.StoppedEarly(epoch=2, step=9, metric="loss", patience=2, min_delta=1e6)
    assert (first.outcome.finished, first.outcome.step, first.outcome.stopped_early) == (True, 9, told)
    assert first.events.of(events.StoppedEarly) == [told]
    again = run(setting, alone(), limits)
    assert again.outcome == first.outcome
    assert (again.events.of(events.StepEnded), again.events.of(events.StoppedEarly)) == ([], [])
    patient = replace(setting, early_stopping=replace(setting.early_stopping, patience=3))
    assert run(patient, alone(), limits).outcome.step == 12


def test_other_values_to_compare_are_compared_from_the_newest_checkpoint_on(data: Data, tmp_path: Path) -> None:
    setting, limits = early(data, tmp_path)
    run(setting, alone(), limits)
    other = replace(setting, early_stopping=EarlyStopping("score", "max", patience=1000))
    resumed = run(other, alone(), limits)
    assert resumed.outcome.step == STEPS * EPOCHS
    assert [event.step for event in resumed.events.of(events.Evaluated)] == [9, 12, 15, 18]
    assert resumed.outcome.best is not None
    assert resumed.outcome.best.metric == "score"


def test_an_early_stop_where_max_steps_ends_the_run_is_one(data: Data, tmp_path: Path) -> None:
    setting, limits = early(data, tmp_path, max_steps=9)
    assert run(setting, alone(), limits).outcome.stopped_early is not None
    longer = run(setting, alone(), replace(limits, max_steps=None))
    assert (longer.outcome.step, longer.outcome.finished) == (9, True)


def test_no_early_stop_where_nothing_was_left(data: Data, tmp_path: Path) -> None:
    setting, limits = early(data, tmp_path)
    outcome = run(setting, alone(), replace(limits, epochs=3)).outcome
    assert (outcome.finished, outcome.step, outcome.stopped_early) == (True, 9, None)


def test_ranks_stop_early_together(data: Data, tmp_path: Path) -> None:
    setting, limits = early(data, tmp_path)
    runs = all_well(run_on_ranks(3, lambda comm: run(setting, comm, limits)))
    assert [one.outcome for one in runs] == [runs[0].outcome] * 3
    assert runs[0].outcome.step == 9


def test_a_best_checkpoint_that_could_not_be_written_costs_no_other_one(tmp_path: Path) -> None:
    """With --checkpoint-failure warn: the best of those that are there stays."""
    store = CheckpointStore(tmp_path, keep=1)
    for step, best in ((30, 30), (50, 40)):
        state = {"model/w": np.ones(1), "optimizer/w": np.ones(1)}
        store.save(Checkpoint(state, Position(step, step), {}), Best("loss", 1.0, best, 0))
    assert [path.name for path in store.paths()] == ["step_00000030", "step_00000050"]
    assert (tmp_path / "best").read_text() == "step_00000030\n"
