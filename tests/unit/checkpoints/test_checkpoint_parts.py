"""A checkpoint that several ranks write, each a part: it is whole or not there, and reads as if one had written it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ranks import ThreadCommunicator, run_on_ranks

from hvdtrain.checkpoints.format import Checkpoint, Position, publish, read_checkpoint, state_bytes, write_checkpoint
from hvdtrain.checkpoints.parts import in_parts, part_of, require_shared, write_part, writing_ranks
from hvdtrain.checkpoints.saved import Saved, failure_of
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.checkpoints.writer import CheckpointWriter
from hvdtrain.cli.main import main
from hvdtrain.errors import UsageError
from hvdtrain.named_arrays import State

NAMES = ("model/w", "model/b", "optimizer/w/m", "optimizer/w/v", "ema/w", "scale", "model/c", "model/d")


def state_of(sizes: list[int]) -> State:
    return {
        name: np.arange(size, dtype=np.float32) + n for n, (name, size) in enumerate(zip(NAMES, sizes, strict=False))
    }


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@given(sizes=st.lists(st.integers(0, 50), max_size=len(NAMES)), count=st.integers(1, 5), turned=st.booleans())
def test_parts_are_a_division_of_the_state(sizes: list[int], count: int, turned: bool) -> None:
    state = state_of(sizes)
    parts = [part_of(state, index, count) for index in range(count)]
    assert sorted(name for part in parts for name in part) == sorted(state)
    bytes_of = [state_bytes(part) for part in parts]
    assert max(bytes_of) - min(bytes_of) <= max((array.nbytes for array in state.values()), default=0)
    other_order = dict(reversed(state.items())) if turned else state
    assert [part.keys() for part in parts] == [part_of(other_order, index, count).keys() for index in range(count)]


@given(size=st.integers(1, 64), writers=st.integers(1, 80))
def test_writers_begin_with_rank_0_and_are_spread(size: int, writers: int) -> None:
    ranks = writing_ranks(size, writers)
    assert len(set(ranks)) == len(ranks) == min(size, writers)
    assert ranks[0] == 0
    gaps = np.diff([*ranks, size])
    assert gaps.max() - gaps.min() <= 1


def save_in_parts(comm: ThreadCommunicator, folder: Path, writers: int, state: State, step: int = 4) -> Saved:
    writer = CheckpointWriter(comm, CheckpointStore(folder, 3), {"seed": 1}, writers=writers)
    writer.begin(lambda _: dict(state), Position(step, 8))
    return writer.collect()


@given(sizes=st.lists(st.integers(0, 50), max_size=len(NAMES)), world=st.integers(1, 4), writers=st.integers(1, 5))
@settings(max_examples=25)
def test_what_several_write_reads_as_what_one_writes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], world: int, writers: int
) -> None:
    folder, state = tmp_path_factory.mktemp("parts"), state_of(sizes)
    told = run_on_ranks(world, lambda comm: save_in_parts(comm, folder, writers, state))
    assert [(one.path, one.size) for one in told] == [(str(folder / "step_00000004"), state_bytes(state))] * world
    read = read_checkpoint(folder / "step_00000004")
    assert same(read.state, state)
    assert (read.position, read.about) == (Position(4, 8), {"format": 1, "seed": 1})
    assert sorted(path.name for path in folder.iterdir()) == ["latest", "step_00000004"]


@pytest.mark.parametrize("bad_rank", [0, 1, 2])
def test_weights_that_are_not_finite_in_one_part_end_all(bad_rank: int, tmp_path: Path) -> None:
    """The array with the bad number is in the part of one writer only."""
    state = {f"model/{n}": np.ones(10 - n) for n in range(3)}
    state[f"model/{bad_rank}"][-1] = np.nan

    def save(comm: ThreadCommunicator) -> str:
        with pytest.raises(Exception, match="weights are NaN or infinite") as caught:
            save_in_parts(comm, tmp_path, 3, state)
        return str(caught.value)

    assert len(set(run_on_ranks(3, save))) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad_rank", [0, 1, 2])
def test_a_part_that_cannot_be_written_fails_on_all_and_leaves_nothing(bad_rank: int, tmp_path: Path) -> None:
    """That rank finds a file where others have the folder."""
    (tmp_path / "file").write_text("")
    good = tmp_path / "checkpoints"
    sound = run_on_ranks(3, lambda comm: save_in_parts(comm, good, 3, state_of([5, 6, 7]), 2))
    assert [one.failure for one in sound] == [None] * 3

    def save(comm: ThreadCommunicator) -> str:
        folder = tmp_path / "file" if comm.topology.rank == bad_rank else good
        return failure_of(save_in_parts(comm, folder, 3, state_of([5, 6, 7]))).fact

    facts = run_on_ranks(3, save)
    assert len(set(facts)) == 1
    assert "checkpoint of step 4 could not be written" in facts[0]
    left = {path.name for path in good.iterdir() if not path.name.startswith(".")}
    assert left == {"latest", "step_00000002"}
    newest = CheckpointStore(good, 3).newest()
    assert newest is not None
    assert newest.position.step == 2


def test_a_part_that_was_lost_on_its_way_is_noticed(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 3)
    hashes = write_part(store.staging(4), state_of([5, 6, 7]), 0, 2) | {"model-00002-of-00002.safetensors": "0" * 64}
    with pytest.raises(FileNotFoundError):
        store.put(Position(4, 8), None, lambda path: publish(store.staging(4), path, Position(4, 8), {}, hashes))
    assert store.paths() == []


def test_parts_that_a_killed_job_left_are_removed_at_the_next_start_only(tmp_path: Path) -> None:
    """During a run, they may be those of the next checkpoint."""
    store = CheckpointStore(tmp_path, 3)
    write_part(store.staging(8), state_of([5, 6, 7]), 0, 2)
    store.save(Checkpoint(state_of([1]), Position(4, 8), {}))
    assert [path.name for path in tmp_path.glob(".*")] == [".step_00000008.parts.tmp"]
    CheckpointStore(tmp_path, 3).resume_from(Position(4, 8))
    assert list(tmp_path.glob(".*")) == []


def test_a_folder_that_is_not_shared_is_refused(tmp_path: Path) -> None:
    def ask(comm: ThreadCommunicator) -> str:
        own = tmp_path / ("own" if comm.topology.rank == 2 else "shared")
        own.mkdir(exist_ok=True)
        with pytest.raises(UsageError) as caught:
            require_shared(own, comm)
        return caught.value.fact

    facts = run_on_ranks(3, ask)
    assert len(set(facts)) == 1
    assert facts[0].startswith("On rank 2: ")
    assert "is not the folder that rank 0 has under this name" in facts[0]
    run_on_ranks(3, lambda comm: require_shared(tmp_path / "shared", comm))
    assert list((tmp_path / "shared").iterdir()) == []


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 3)])
def test_convert(before: int, after: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = Checkpoint(state_of([5, 6, 7, 8, 9]), Position(4, 8), {"seed": 1})
    write_checkpoint(tmp_path / "run" / "checkpoints" / "step_00000004", checkpoint, in_parts(before))
    new = tmp_path / "new"
    assert main(["checkpoint", "convert", str(tmp_path / "run"), str(new), "--parts", str(after)]) == 0
    read = read_checkpoint(new)
    assert same(read.state, checkpoint.state)
    assert read.position == checkpoint.position
    wanted = "model.safetensors" if after == 1 else f"model-00001-of-{after:05}.safetensors"
    assert wanted in {path.name for path in new.iterdir()}
    capsys.readouterr()
    assert main(["checkpoint", "verify", str(new)]) == 0
    assert capsys.readouterr().out.startswith("new: sound, ")
    assert main(["checkpoint", "convert", str(tmp_path / "run"), str(new)]) == 2
    assert "Nothing is overwritten" in capsys.readouterr().err


def test_damage_in_a_part_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint(tmp_path / "step_00000004", Checkpoint(state_of([5, 6, 7]), Position(4, 8), {}), in_parts(2))
    file = tmp_path / "step_00000004" / "optimizer-00001-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert main(["checkpoint", "verify", str(tmp_path)]) == 1
    assert "optimizer-00001-of-00002.safetensors is damaged" in capsys.readouterr().out


def test_there_are_no_more_parts_than_arrays(tmp_path: Path) -> None:
    checkpoint = Checkpoint(state_of([5, 6, 7]), Position(4, 8), {})
    write_checkpoint(tmp_path / "checkpoints" / "step_00000004", checkpoint, in_parts(1))
    assert main(["checkpoint", "convert", str(tmp_path), str(tmp_path / "new"), "--parts", "99999"]) == 0
    assert f"model-00001-of-{len(checkpoint.state):05}.safetensors" in {
        file.name for file in (tmp_path / "new").iterdir()
    }
    assert same(read_checkpoint(tmp_path / "new").state, checkpoint.state)
