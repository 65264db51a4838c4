"""Which checkpoints stay, which one is the newest, and what happens where it is damaged."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ranks import ThreadCommunicator, run_on_ranks

from hvdtrain.checkpoints import format as checkpoint_format
from hvdtrain.checkpoints.format import Checkpoint, Position
from hvdtrain.checkpoints.saved import Saved, failure_of
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.checkpoints.writer import CheckpointWriter, await_all_writes
from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.topology import Topology


def checkpoint(step: int, value: float = 0.0) -> Checkpoint:
    return Checkpoint({"model/w": np.full(3, value), "optimizer/m": np.zeros(2)}, Position(step, step), {})


def steps(store: CheckpointStore) -> list[int]:
    return [int(path.name.removeprefix("step_")) for path in store.paths()]


def damage(path: Path) -> None:
    content = bytearray((path / "model.safetensors").read_bytes())
    content[-1] ^= 255
    (path / "model.safetensors").write_bytes(content)


@given(keep=st.integers(1, 4), gaps=st.lists(st.integers(1, 10**7), min_size=1, max_size=6))
@settings(max_examples=20)
def test_the_last_k_stay(tmp_path_factory: pytest.TempPathFactory, keep: int, gaps: list[int]) -> None:
    folder = tmp_path_factory.mktemp("keep") / "checkpoints"
    store = CheckpointStore(folder, keep)
    saved = np.cumsum(gaps).tolist()
    for count, step in enumerate(saved, start=1):
        path = store.save(checkpoint(step, step))
        assert steps(store) == saved[:count][-keep:]
        assert (folder / "latest").read_text() == f"{path.name}\n"
        newest = store.newest()
        assert newest is not None
        assert newest.position.step == step


def test_training_resumes_from_before_a_step(tmp_path: Path) -> None:
    """Later checkpoints stay until the next save, and count only where no other is sound."""
    store = CheckpointStore(tmp_path / "checkpoints", keep=5)
    assert store.go_back(100) is None
    for step in (10, 20, 30, 40):
        store.save(checkpoint(step))
    sent: list[str] = []
    store.copy = lambda path: sent.append(path.name)
    assert [store.go_back(step) for step in (5, 45, 29, 35, 10)] == [None, 40, 20, 20, 10]
    assert sent == [f"step_{step:08d}" for step in (40, 20, 20, 10)]
    newest = store.newest()
    assert newest is not None
    assert newest.position.step == 10
    store.save(checkpoint(15))
    assert steps(store) == [10, 15]


def test_where_training_was_sent_back_later_checkpoints_count_only_if_no_other_is_sound(tmp_path: Path) -> None:
    def newest() -> int:
        found = store.newest()
        assert found is not None
        return found.position.step

    store = CheckpointStore(tmp_path, keep=5)
    for step in (10, 20, 30, 40):
        store.save(checkpoint(step))
    store.resume_from(Position(20, 20))
    assert newest() == 20
    damage(tmp_path / "step_00000020")
    assert newest() == 10
    damage(tmp_path / "step_00000010")
    assert newest() == 40
    store.save(checkpoint(25))
    assert (steps(store), newest()) == ([10, 20, 25], 25)


def test_steps_of_more_than_eight_digits_sort_by_number(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=5)
    for step in (99_999_999, 100_000_000, 1_000_000_000):
        store.save(checkpoint(step))
    assert steps(store) == [99_999_999, 100_000_000, 1_000_000_000]


def test_no_folder_and_an_empty_one_hold_none(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "none", 3).newest() is None
    assert CheckpointStore(tmp_path, 3).newest() is None


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "step_abc").mkdir()
    store = CheckpointStore(tmp_path, keep=1)
    for step in (1, 2):
        store.save(checkpoint(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "notes.txt", "step_00000002", "step_abc"]


def test_a_damaged_one_is_skipped_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = CheckpointStore(tmp_path, keep=5)
    for step in (1, 2, 3):
        store.save(checkpoint(step, step))
    for path in store.paths()[1:]:
        damage(path)
    with caplog.at_level(logging.WARNING, "hvdtrain"):
        newest = store.newest()
    assert newest is not None
    assert newest.position.step == 1
    said = [record.getMessage() for record in caplog.records]
    assert ["step_00000003" in said[0], "step_00000002" in said[1], len(said)] == [True, True, 2]
    assert all("SHA-256 is not that of the manifest" in line for line in said)


def test_all_damaged_is_the_users_to_decide(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=5)
    for step in (1, 2):
        damage(store.save(checkpoint(step)))
    with pytest.raises(UsageError, match="Every checkpoint in .* is damaged; the newest: .*step_00000002"):
        store.newest()


@pytest.mark.parametrize("keep", [1, 2, 3, 10])
def test_after_going_back_the_abandoned_steps_are_gone(tmp_path: Path, keep: int) -> None:
    """Else they would count as the newest, and what is saved now would be the first to be removed."""
    old = CheckpointStore(tmp_path, keep=10)
    for step in (10, 20, 30, 40):
        old.save(checkpoint(step, step))
    store = CheckpointStore(tmp_path, keep)
    path = store.save(checkpoint(15, 1.5))
    assert steps(store) == [10, 15][-keep:]
    assert (tmp_path / "latest").read_text() == f"{path.name}\n"
    newest = store.newest()
    assert newest is not None
    assert newest.state["model/w"][0] == 1.5


def test_a_step_that_is_trained_anew_is_replaced(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=3)
    for step in (1, 2):
        store.save(checkpoint(step, step))
    damage(tmp_path / "step_00000002")
    store.save(checkpoint(2, 2.5))
    newest = store.newest()
    assert newest is not None
    assert (newest.position.step, newest.state["model/w"][0], steps(store)) == (2, 2.5, [1, 2])


def test_what_a_killed_run_left_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / ".step_00000001.4711.tmp").mkdir()
    (tmp_path / ".step_00000001.4711.tmp" / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".latest.4711.tmp").write_bytes(b"")
    CheckpointStore(tmp_path, keep=3).save(checkpoint(1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step_00000001"]


def test_a_failed_save_leaves_the_older_ones(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    store.save(checkpoint(1, 1.0))
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()  # stands in for a disk that refuses the last rename
    with pytest.raises(OSError, match="latest"):
        store.save(checkpoint(2))
    assert 1 in steps(store)


def test_a_disk_that_fills_up_while_arrays_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """safetensors tells of it by an error of its own."""
    from safetensors import SafetensorError

    def full(*_: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint_format, "save_file", full)
    saved = _saved(
        CheckpointWriter(SerialCommunicator(Topology.single()), CheckpointStore(tmp_path, 3), {}), Position(4)
    )
    assert "No space left on device" in failure_of(saved).fact
    assert list(tmp_path.iterdir()) == []


def test_who_leaves_a_world_learns_of_writes_that_nobody_has_collected(tmp_path: Path) -> None:
    """Whatever has ended them."""

    def broken() -> None:
        raise RuntimeError("no ledger")

    writer = CheckpointWriter(SerialCommunicator(Topology.single()), CheckpointStore(tmp_path, 3), {})
    writer.begin(lambda _: {"model/w": np.full(1, np.nan)}, Position(4))
    writer.begin(lambda _: {"model/w": np.ones(1)}, Position(5), write_ledger=broken)
    await_all_writes(60)
    not_finite, not_written = writer.failures()
    assert not_finite[0] == "After step 4 weights are NaN or infinite: w."
    assert not_written[0] == "The checkpoint of step 5 could not be written: no ledger."


def _saved(writer: CheckpointWriter, position: Position) -> Saved:
    writer.begin(lambda _: {"model/w": np.ones(1)}, position)
    return writer.collect()


@pytest.mark.parametrize("reuses", [True, False])
def test_memory_of_a_copy_is_kept_for_the_next_one_only_where_that_is_asked_for(reuses: bool, tmp_path: Path) -> None:
    writer = CheckpointWriter(SerialCommunicator(Topology.single()), CheckpointStore(tmp_path, 3), {})
    given: list[list[str]] = []
    for step in (1, 2):
        writer.begin(lambda earlier: given.append([*earlier]) or {"model/w": np.ones(1)}, Position(step), reuses=reuses)
        writer.collect()
    assert given == [[], ["model/w"] if reuses else []]


def test_a_writer_tells_every_rank_where_it_saved(tmp_path: Path) -> None:
    def save(comm: ThreadCommunicator) -> tuple[str, int]:
        saved = _saved(CheckpointWriter(comm, CheckpointStore(tmp_path, 3), {}), Position(4, 8))
        return saved.path, saved.size

    assert run_on_ranks(3, save) == [(str(tmp_path / "step_00000004"), 8)] * 3


def test_a_writer_tells_every_rank_that_it_could_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    def save(comm: ThreadCommunicator) -> HvdtrainError:
        store = CheckpointStore(tmp_path / "file" / "checkpoints", 3)
        return failure_of(_saved(CheckpointWriter(comm, store, {}), Position(4, 8)))

    for error in run_on_ranks(3, save):
        assert isinstance(error, HvdtrainError)
        assert (error.joint, error.exit_code) == (True, 1)
        assert "checkpoint of step 4 could not be written" in error.fact
        assert "Not a directory" in error.fact


def test_the_manifest_says_what_the_writer_was_told(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 3)
    writer = CheckpointWriter(SerialCommunicator(Topology.single()), store, {"seed": 7, "world_size": 1})
    _saved(writer, Position(4, 30))
    newest = store.newest()
    assert newest is not None
    assert (newest.position, newest.about) == (Position(4, 30), {"format": 1, "seed": 7, "world_size": 1})


def test_a_checkpoint_that_another_one_replaces_is_there_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the two renames, or where the second one fails."""
    store = CheckpointStore(tmp_path / "checkpoints", keep=1)
    path = store.save(checkpoint(5, value=1.0))
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if target == path and self.name.endswith(f"{os.getpid()}.tmp"):
            raise OSError(errno.EIO, "the disk")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="the disk"):
        store.save(checkpoint(5, value=2.0))
    monkeypatch.undo()
    path.rename(path.with_name(f".{path.name}.replaced.tmp"))
    store.restore_replaced()
    newest = CheckpointStore(tmp_path / "checkpoints", keep=1).newest()
    assert newest is not None
    assert newest.state["model/w"].tolist() == [1.0] * 3


def test_a_run_that_begins_with_anothers_checkpoint_has_it_from_the_beginning(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=1)
    store.adopt(checkpoint(5, value=1.0), None)
    store.adopt(checkpoint(5, value=2.0), None)
    newest = CheckpointStore(tmp_path / "checkpoints", keep=1).newest()
    assert newest is not None
    assert newest.state["model/w"].tolist() == [1.0] * 3
    assert store.named("latest").name == "step_00000005"
