"""Checkpoints that are written while training goes on are those that it would have waited for."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.numpy_training import Data, Run, Setting, train
from support.ranks import ThreadCommunicator, all_well, run_on_ranks

from hvdtrain.audit.audit_summary import read_coverage
from hvdtrain.checkpoints import store
from hvdtrain.checkpoints.format import Checkpoint, read_checkpoint, write_checkpoint
from hvdtrain.engine import events, saves
from hvdtrain.engine.limits import RunLimits
from hvdtrain.engine.saves import Cadence, SavePolicy
from hvdtrain.errors import HvdtrainError

BACKGROUND = SavePolicy(in_background=True)
EVERY_STEP = RunLimits(2, checkpoint_interval=1)  # 6 steps
LAST = 6
Started, Durable = events.CheckpointStarted, events.CheckpointDurable
Write = Callable[[Path, Checkpoint], None]


def run(setting: Setting, limits: RunLimits = EVERY_STEP, ranks: int = 2) -> list[Run]:
    return all_well(run_on_ranks(ranks, lambda comm: train(setting, comm, limits, None, None)))


def written(folder: Path) -> dict[int, dict[str, bytes]]:
    """Step → the bytes of each array of its checkpoint."""
    found = {}
    for path in sorted(folder.glob("checkpoints/step_*")):
        checkpoint = read_checkpoint(path)
        arrays = {name: array.tobytes() for name, array in checkpoint.state.items()}
        found[checkpoint.position.step] = arrays
    return found


@pytest.fixture
def background(data: Data, tmp_path: Path) -> Setting:
    return Setting(data, tmp_path / "run", save_policy=BACKGROUND)


def in_writes(monkeypatch: pytest.MonkeyPatch, write: Write) -> None:
    monkeypatch.setattr(store, "write_checkpoint", write)


def slowly(path: Path, checkpoint: Checkpoint) -> None:
    time.sleep(0.05)  # steps take much less
    write_checkpoint(path, checkpoint)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_copy_does_not_change_while_training_goes_on(
    ranks: int, background: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_writes(monkeypatch, slowly)
    run(background, ranks=ranks)
    waiting = replace(background, folder=tmp_path / "waiting", save_policy=SavePolicy())
    run(waiting, ranks=ranks)
    assert written(background.folder) == written(waiting.folder)
    assert set(written(background.folder)) == {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_goes_on_while_a_checkpoint_is_written(
    ranks: int, background: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is written only when the step after it has ended."""
    step_ended = threading.Event()

    def blocked(path: Path, checkpoint: Checkpoint) -> None:
        assert step_ended.wait(60)
        write_checkpoint(path, checkpoint)

    def release(event: events.Event) -> None:
        if isinstance(event, events.StepEnded) and event.step == 2:
            step_ended.set()

    in_writes(monkeypatch, blocked)
    for one in run(replace(background, callbacks=(release,)), RunLimits(1, checkpoint_interval=1), ranks):
        assert [event.step for event in one.events.of(Durable)] == [1, 2, 3]


def test_two_copies_at_most_and_every_rank_learns_of_each_checkpoint_in_the_same_place(
    background: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_writes(monkeypatch, slowly)
    runs = run(background)
    stories = [[(type(event), getattr(event, "step", None)) for event in one.events.events] for one in runs]
    assert stories[0] == stories[1]
    under_way: list[int] = []
    most = 0
    for kind, step in stories[0]:
        if kind is Started:
            under_way.append(int(step))
        if kind is Durable:
            assert under_way.pop(0) == step
        most = max(most, len(under_way))
    assert (under_way, most) == ([], 2)
    assert stories[0][-1] == (events.RunEnded, LAST)


def test_a_failed_write_ends_training_on_all_ranks_and_older_checkpoints_are_intact(
    background: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_writes(monkeypatch, fails_at(3))
    for error in run_on_ranks(2, lambda comm: train(background, comm, EVERY_STEP, None, None)):
        assert isinstance(error, HvdtrainError)
        assert (error.joint, error.exit_code) == (True, 1)
        assert "The checkpoint of step 3 could not be written: [Errno 28] No space" in error.fact
    assert {1, 2} <= set(written(background.folder))
    assert 3 not in written(background.folder)


def test_training_may_go_on_without_a_checkpoint_that_could_not_be_written(
    background: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_writes(monkeypatch, fails_at(3))
    setting = replace(background, save_policy=replace(BACKGROUND, goes_on=True))
    for one in run(setting):
        (failed,) = one.events.of(events.CheckpointFailed)
        assert (failed.step, "No space left on device" in failed.reason) == (3, True)
        assert [event.step for event in one.events.of(Durable)] == [1, 2, 4, 5, 6]
    assert set(written(setting.folder)) == {1, 2, 4, 5, 6}
    require_exact(setting)


def test_the_last_checkpoint_must_be_written_in_any_case(background: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    in_writes(monkeypatch, fails_at(LAST))
    setting = replace(background, save_policy=replace(BACKGROUND, goes_on=True))
    for error in run_on_ranks(2, lambda comm: train(setting, comm, EVERY_STEP, None, None)):
        assert isinstance(error, HvdtrainError)
        assert "The checkpoint of step 6 could not be written" in error.fact


def test_an_account_whose_line_did_not_reach_the_disk_is_there_once(
    background: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, failed = os.fsync, []

    def fails_once(file: int) -> None:
        if os.readlink(f"/proc/self/fd/{file}").endswith("ledger.jsonl") and len(failed) < 2:
            failed.append(file)
            if len(failed) == 2:  # the first line is that of the start
                raise OSError(errno.EIO, "Input/output error")
        fsync(file)

    monkeypatch.setattr(os, "fsync", fails_once)
    run(replace(background, save_policy=replace(BACKGROUND, goes_on=True)))
    monkeypatch.undo()
    assert len(failed) == 2
    require_exact(background)


def test_an_account_that_could_not_be_written_is_written_with_the_next_one(
    background: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hvdtrain.audit import ledger

    calls = []
    original = ledger.write_atomically

    def fails_once(path: Path, content: bytes) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        original(path, content)

    monkeypatch.setattr(ledger, "write_atomically", fails_once)
    setting = replace(background, save_policy=replace(BACKGROUND, goes_on=True))
    (one, _) = run(setting)
    assert len(one.events.of(events.CheckpointFailed)) == 1
    require_exact(setting)


def test_a_checkpoint_that_is_due_may_be_left_out_while_another_one_is_written(
    background: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def blocked(path: Path, checkpoint: Checkpoint) -> None:
        assert checkpoint.position.step != 1 or release.wait(60)
        write_checkpoint(path, checkpoint)

    def after_the_second(event: events.Event) -> None:
        if isinstance(event, events.CheckpointSkipped):
            release.set()

    in_writes(monkeypatch, blocked)
    setting = replace(background, save_policy=replace(BACKGROUND, skips=True), callbacks=(after_the_second,))
    for one in run(setting):
        assert one.events.of(events.CheckpointSkipped)[0].step == 2
        saved = [event.step for event in one.events.of(Durable)]
        skipped = [event.step for event in one.events.of(events.CheckpointSkipped)]
        assert sorted(saved + skipped) == [1, 2, 3, 4, 5, 6]
        assert {1, 3, 6} <= set(saved)  # the ends of epochs are always saved
    require_exact(setting)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_clock_asks_for_checkpoints_on_all_ranks_together(ranks: int, data: Data, tmp_path: Path) -> None:
    """Each reading of this clock is a second later, and rank 0 alone reads it."""
    seconds = iter(range(1000))
    policy = SavePolicy(in_background=True, cadence=Cadence(seconds=2.0, clock=lambda: float(next(seconds))))
    setting = Setting(data, tmp_path, save_policy=policy)
    if ranks == 1:
        steps = [event.step for one in run(setting, RunLimits(2), 1) for event in one.events.of(Durable)]
        assert set(steps) > {3, 6}
        return

    def each(comm: ThreadCommunicator) -> Run:
        own = setting if comm.topology.is_root else replace(setting, save_policy=replace(policy, cadence=Cadence(1e9)))
        return train(own, comm, RunLimits(4), None, None)

    one, other = all_well(run_on_ranks(2, each))
    steps = [event.step for event in one.events.of(Durable)]
    assert set(steps) > {3, 6, 9, 12}
    assert steps == [event.step for event in other.events.of(Durable)]
    assert {event.step for event in one.events.of(events.Logged)} >= set(steps)


def test_a_cadence() -> None:
    now = [0.0]
    every = Cadence(seconds=10, clock=lambda: now[0])
    assert not every.asks()
    now[0] = 10.0
    assert (every.asks(), every.asks()) == (True, False)  # once
    now[0] = 19.0
    assert not every.asks()
    now[0] = 20.0
    assert every.asks()  # what was asked for has not begun, in a vote before the first step, say
    every.began()
    assert not every.asks()
    every.ended(cost=0.1, write_seconds=60.0)
    assert every.interval == 60.0  # the disk needs as long
    chosen = Cadence(mtbf=20_000.0, clock=lambda: now[0])
    assert chosen.interval == saves.young_daly(1.0, 20_000.0) == 199.0
    chosen.ended(cost=4.0, write_seconds=5.0)
    assert chosen.interval == 396.0


def fails_at(step: int) -> Write:
    def write(path: Path, checkpoint: Checkpoint) -> None:
        if checkpoint.position.step == step:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_checkpoint(path, checkpoint)

    return write


def require_exact(setting: Setting) -> None:
    """Every record was used once in each epoch."""
    assert read_coverage(setting.folder).exact
