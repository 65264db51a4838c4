"""The order of events is the one that `hvdtrain.engine.events` documents."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.numpy_training import Data, NumpyAdapter, Setting, train

from data_sharding import LoadedBatch
from hvdtrain.algorithms.early_stopping import EarlyStopping
from hvdtrain.checkpoints.format import Checkpoint, read_checkpoint
from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.data.catalog_source import CatalogSource
from hvdtrain.engine import events
from hvdtrain.engine.limits import RunLimits
from hvdtrain.topology import Topology

STEPS = 3  # an epoch

Started, Epoch, Step, Logged = events.RunStarted, events.EpochStarted, events.StepEnded, events.Logged
Eval, Evaluated, EpochEnded = events.EvalStarted, events.Evaluated, events.EpochEnded
Saved, Early, Ended = events.CheckpointDurable, events.StoppedEarly, events.RunEnded


def story(setting: Setting, limits: RunLimits, start: Checkpoint | None = None) -> list[tuple[str, int]]:
    """What happened, as (event, its step or else its epoch)."""
    position, state = (start.position, start.state) if start else (None, None)
    run = train(setting, SerialCommunicator(Topology.single()), limits, position, state)
    return [(type(event).__name__, getattr(event, "step", getattr(event, "epoch", -1))) for event in run.events.events]


def named(*pairs: tuple[type, int]) -> list[tuple[str, int]]:
    return [
        (name, number)
        for kind, number in pairs
        for name in (["CheckpointStarted"] if kind is Saved else []) + [kind.__name__]
    ]


def closing(step: int) -> list[tuple[type, int]]:
    """How an epoch ends that ended by itself."""
    return [(Eval, step), (Evaluated, step), (EpochEnded, step), (Saved, step)]


@pytest.fixture
def setting(data: Data, tmp_path: Path) -> Setting:
    return Setting(data, tmp_path)


def checkpoint_of(setting: Setting, step: int) -> Checkpoint:
    """The checkpoint that an earlier run into this folder left at `step`."""
    story(setting, RunLimits(2, checkpoint_interval=1))
    return read_checkpoint(setting.folder / "checkpoints" / f"step_{step:08d}")


def test_two_epochs(setting: Setting) -> None:
    assert story(setting, RunLimits(2, log_interval=50)) == named(
        *[(Started, 0)],
        *[(Epoch, 0), (Step, 1), (Logged, 1), (Step, 2), (Step, 3), (Logged, 3), *closing(3)],
        *[(Epoch, 1), (Step, 4), (Step, 5), (Step, 6), (Logged, 6), *closing(6)],
        *[(Ended, 6)],
    )


def test_every_log_interval(setting: Setting) -> None:
    assert story(setting, RunLimits(2, log_interval=2)) == named(
        *[(Started, 0)],
        *[(Epoch, 0), (Step, 1), (Logged, 1), (Step, 2), (Logged, 2), (Step, 3), (Logged, 3), *closing(3)],
        *[(Epoch, 1), (Step, 4), (Logged, 4), (Step, 5), (Step, 6), (Logged, 6), *closing(6)],
        *[(Ended, 6)],
    )


def test_a_step_is_logged_once_where_interval_and_epoch_end_coincide(setting: Setting) -> None:
    logged = [number for name, number in story(setting, RunLimits(2, log_interval=3)) if name == "Logged"]
    assert logged == [1, 3, 6]


def test_every_checkpoint_interval(setting: Setting) -> None:
    assert story(setting, RunLimits(2, log_interval=50, checkpoint_interval=2)) == named(
        *[(Started, 0)],
        *[(Epoch, 0), (Step, 1), (Logged, 1), (Step, 2), (Logged, 2), (Saved, 2), (Step, 3), (Logged, 3), *closing(3)],
        *[(Epoch, 1), (Step, 4), (Logged, 4), (Saved, 4), (Step, 5), (Step, 6), (Logged, 6), *closing(6)],
        *[(Ended, 6)],
    )


def test_the_last_step_of_an_epoch_is_saved_once_and_after_evaluation(setting: Setting) -> None:
    saved = [
        number for name, number in story(setting, RunLimits(2, checkpoint_interval=3)) if name == "CheckpointDurable"
    ]
    assert saved == [3, 6]


def test_max_steps_inside_an_epoch(setting: Setting) -> None:
    assert story(setting, RunLimits(2, max_steps=4, log_interval=50)) == named(
        *[(Started, 0)],
        *[(Epoch, 0), (Step, 1), (Logged, 1), (Step, 2), (Step, 3), (Logged, 3), *closing(3)],
        *[(Epoch, 1), (Step, 4), (Logged, 4), (Eval, 4), (Evaluated, 4), (Saved, 4)],
        *[(Ended, 4)],
    )


@pytest.mark.parametrize("max_steps", [6, 7, 1000])
def test_max_steps_at_or_after_the_end_changes_nothing(setting: Setting, max_steps: int) -> None:
    limited = story(setting, RunLimits(2, max_steps=max_steps))
    assert limited == story(replace(setting, folder=setting.folder / "other"), RunLimits(2))


def test_max_steps_at_an_epochs_end_ends_that_epoch(setting: Setting) -> None:
    assert story(setting, RunLimits(2, max_steps=3))[-6:] == named(*closing(3), (Ended, 3))


def test_without_validation(setting: Setting) -> None:
    assert story(replace(setting, sets=()), RunLimits(2, log_interval=50)) == named(
        *[(Started, 0)],
        *[(Epoch, 0), (Step, 1), (Logged, 1), (Step, 2), (Step, 3), (Logged, 3), (EpochEnded, 3), (Saved, 3)],
        *[(Epoch, 1), (Step, 4), (Step, 5), (Step, 6), (Logged, 6), (EpochEnded, 6), (Saved, 6)],
        *[(Ended, 6)],
    )


def test_resume_inside_an_epoch(setting: Setting) -> None:
    start = checkpoint_of(setting, 4)
    assert story(setting, RunLimits(2, log_interval=50), start) == named(
        *[(Started, 4)],
        *[(Epoch, 1), (Step, 5), (Step, 6), (Logged, 6), *closing(6)],
        *[(Ended, 6)],
    )


def test_resume_at_an_epochs_end_begins_the_next(setting: Setting) -> None:
    start = checkpoint_of(setting, 3)
    assert story(setting, RunLimits(2), start)[:3] == named((Started, 3), (Epoch, 1), (Step, 4))


@pytest.mark.parametrize("limits", [RunLimits(2), RunLimits(1), RunLimits(5, max_steps=6), RunLimits(5, max_steps=2)])
def test_resume_where_nothing_is_left_evaluates_once(setting: Setting, limits: RunLimits) -> None:
    start = checkpoint_of(setting, 6)
    assert story(setting, limits, start) == named((Started, 6), (Eval, 6), (Evaluated, 6), (Ended, 6))


def test_a_run_that_stops_early(setting: Setting) -> None:
    """No second validation improves by so much. The checkpoint is written before."""
    impatient = replace(setting, early_stopping=EarlyStopping(patience=1, min_delta=1e6))
    assert story(impatient, RunLimits(5, log_interval=50)) == named(
        *[(Started, 0)],
        *[(Epoch, 0), (Step, 1), (Logged, 1), (Step, 2), (Step, 3), (Logged, 3), *closing(3)],
        *[(Epoch, 1), (Step, 4), (Step, 5), (Step, 6), (Logged, 6), *closing(6)],
        *[(Early, 6), (Ended, 6)],
    )
    start = read_checkpoint(setting.folder / "checkpoints" / "step_00000006")
    assert story(impatient, RunLimits(5), start) == named((Started, 6), (Eval, 6), (Evaluated, 6), (Ended, 6))


def test_what_the_events_say(setting: Setting) -> None:
    run = train(setting, SerialCommunicator(Topology.single()), RunLimits(2, log_interval=1), None, None)
    assert run.events.of(Started) == [Started(step=0, total_steps=6, steps_per_epoch=3, epochs=2)]
    assert [(event.epoch, event.step) for event in run.events.of(Step)] == [
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 4),
        (1, 5),
        (1, 6),
    ]
    assert [event.samples for event in run.events.of(Logged)] == [8, 8, 6, 8, 8, 6]
    assert [event.samples for event in run.events.of(Evaluated)] == [9, 9]
    assert [event.lr for event in run.events.of(Logged)[:2]] == [0.05, 0.1]
    assert [event.path.name for event in run.events.of(Saved)] == ["step_00000003", "step_00000006"]
    assert run.events.of(Ended) == [Ended(step=6, samples_seen=44, finished=True)]
    assert run.outcome.metrics == run.events.of(Evaluated)[-1].values
    assert run.outcome.best == run.events.of(Evaluated)[-1].best
    assert [event.is_best for event in run.events.of(Evaluated)] == [True, run.outcome.best.step == 6]


def test_the_wait_for_a_pipe_to_open_is_data_time(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = CatalogSource.loader

    def late(*args: Any) -> Any:
        time.sleep(0.3)
        return opened(*args)

    monkeypatch.setattr(CatalogSource, "loader", late)
    alone = SerialCommunicator(Topology.single())
    begin = time.monotonic()
    told = train(setting, alone, RunLimits(1, log_interval=1), None, None).events.of(events.Logged)
    (seconds,) = told[0].rank_seconds
    assert seconds.data >= 0.3
    assert seconds.data + seconds.compute <= time.monotonic() - begin  # it is counted once


def test_the_time_of_a_save_is_the_same_wherever_it_is_told(setting: Setting) -> None:
    limits = RunLimits(2, log_interval=1, checkpoint_interval=1)
    told = train(setting, SerialCommunicator(Topology.single()), limits, None, None).events
    saves = [event.seconds for event in told.of(Saved)[:-1]]  # no step follows the last one
    logged = [event.rank_seconds[0].checkpoint for event in told.of(Logged)[1:]]
    assert saves == logged


def test_an_early_end_says_so(setting: Setting) -> None:
    run = train(setting, SerialCommunicator(Topology.single()), RunLimits(2, max_steps=5), None, None)
    assert (run.outcome.finished, run.outcome.step, run.outcome.epochs, run.outcome.samples_seen) == (False, 5, 1, 38)
    assert run.events.of(Ended) == [Ended(step=5, samples_seen=38, finished=False)]


class Broken(NumpyAdapter):
    """Fails in the step with number 4."""

    def train_step(self, batch: LoadedBatch, step: int, lr: float) -> None:
        if step == 4:
            raise RuntimeError("broken")
        super().train_step(batch, step, lr)


def test_a_run_that_fails_says_so_to_every_callback_and_raises_its_own_error(data: Data, tmp_path: Path) -> None:
    told: list[events.Event] = []

    def fails_too(event: events.Event) -> None:
        if isinstance(event, events.RunFailed):
            raise OSError("a callback of its own trouble")

    setting = Setting(data, tmp_path, open_adapter=Broken, callbacks=(fails_too, told.append))
    with pytest.raises(RuntimeError, match="broken"):
        train(setting, SerialCommunicator(Topology.single()), RunLimits(2), None, None)
    failed = told[-1]
    assert isinstance(failed, events.RunFailed)
    assert (failed.step, str(failed.error)) == (4, "broken")
    assert not any(isinstance(event, Ended) for event in told)


def test_a_callback_that_blocks_does_not_keep_a_failed_run_from_ending(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, entered = threading.Event(), threading.Event()

    def blocks(event: events.Event) -> None:
        if isinstance(event, events.RunFailed):
            entered.set()
            released.wait(60)

    monkeypatch.setattr(events, "FAILURE_SECONDS", 0.1)
    setting = Setting(data, tmp_path, open_adapter=Broken, callbacks=(blocks,))
    with pytest.raises(RuntimeError, match="broken"):
        train(setting, SerialCommunicator(Topology.single()), RunLimits(2), None, None)
    assert entered.wait(60)
    assert not released.is_set()
    released.set()
