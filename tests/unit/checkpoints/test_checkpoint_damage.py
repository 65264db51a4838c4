"""A checkpoint whose bytes are not what was written is never loaded."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rights import no_root, public_folder

from hvdtrain.checkpoints.format import Checkpoint, DamagedCheckpointError, Position, read_checkpoint, write_checkpoint
from hvdtrain.checkpoints.inspection import entries, problems
from hvdtrain.checkpoints.resume import checkpoint_at
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.errors import UsageError
from hvdtrain.named_arrays import State

FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors")
ABOUT = {"task": "digits", "seed": 42, "config": {"lr": 0.001, "data": {"dir": None}, "task_args": {"1": [True, "ä"]}}}


def example(step: int = 120) -> Checkpoint:
    state: State = {
        "model/weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "model/mask": np.array([True, False]),
        "model/count": np.array(7, np.int64),
        "model/rng": np.array([1, 2**32 - 1], np.uint32),
        "model/half": np.array([0.5], np.float16),
        "model/empty": np.zeros((0, 4), np.float32),
        "optimizer/weight/exp_avg": np.ones((2, 3), np.float64).T,
        "optimizer/weight/step": np.array(3.0, np.float32),
    }
    return Checkpoint(state, Position(step, 5760), ABOUT)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that no test may change."""
    folder = tmp_path_factory.mktemp("sound") / "step_00000120"
    write_checkpoint(folder, example())
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(sound, tmp_path / "step_00000120")


def assert_same(one: Checkpoint, other: Checkpoint) -> None:
    assert (one.position, one.about) == (other.position, other.about)
    assert one.state.keys() == other.state.keys()
    for name, array in one.state.items():
        got = other.state[name]
        assert (got.dtype, got.shape, got.tobytes()) == (array.dtype, array.shape, array.tobytes()), name


def test_what_was_written_comes_back(folder: Path) -> None:
    read = read_checkpoint(folder)
    versioned = Checkpoint(read.state, read.position, {k: v for k, v in read.about.items() if k != "format"})
    assert_same(example(), versioned)
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)


def test_a_state_without_optimizer_slots(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a", Checkpoint({"model/w": np.ones(2)}, Position(1, 2), {}))
    assert list(read_checkpoint(tmp_path / "a").state) == ["model/w"]


@given(file=st.sampled_from(FILES), place=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255))
@settings(max_examples=200)
def test_any_flipped_byte_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, sound: Path, file: str, place: float, mask: int
) -> None:
    """A byte between JSON's values may turn into another kind of space: then what is read is still the same."""
    folder = tmp_path_factory.mktemp("flip") / "step_00000120"
    shutil.copytree(sound, folder)
    before = read_checkpoint(sound)
    content = bytearray((folder / file).read_bytes())
    content[int(place * len(content))] ^= mask
    (folder / file).write_bytes(content)
    try:
        after = read_checkpoint(folder)
    except DamagedCheckpointError:
        return
    assert file == "manifest.json"
    assert content[int(place * len(content))] in b" \t\r\n"
    assert_same(before, after)


def test_every_byte_of_the_manifest_that_says_something(folder: Path) -> None:
    """Digits are the dangerous ones: another step would be a sound manifest."""
    path = folder / "manifest.json"
    content = path.read_bytes()
    for place, byte in enumerate(content):
        if byte in b" \n":
            continue
        path.write_bytes(content[:place] + bytes([byte ^ 1]) + content[place + 1 :])
        with pytest.raises(DamagedCheckpointError, match="manifest.json"):
            read_checkpoint(folder)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kept", [0, 1, 0.5, -2])
def test_a_truncated_file_is_noticed(folder: Path, file: str, kept: float) -> None:
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[: int(kept * len(content)) if 0 < kept < 1 else int(kept)])
    with pytest.raises(DamagedCheckpointError, match=file):
        read_checkpoint(folder)


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_noticed(folder: Path, file: str) -> None:
    (folder / file).unlink()
    with pytest.raises(DamagedCheckpointError, match=file):
        read_checkpoint(folder)


def test_files_of_another_checkpoint_are_noticed(folder: Path, tmp_path: Path) -> None:
    other = example(step=130)
    other.state["model/weight"] = other.state["model/weight"] + 1
    write_checkpoint(tmp_path / "other", other)
    (folder / "model.safetensors").write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    with pytest.raises(DamagedCheckpointError, match=r"model\.safetensors is damaged"):
        read_checkpoint(folder)


class Bomb:
    """Unpickling it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("file", FILES)
def test_a_pickle_is_inert(folder: Path, tmp_path: Path, file: str, sealed: bool) -> None:
    """Also where the manifest vouches for it."""
    mark = tmp_path / "executed"
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists(), "the bomb must work"
    mark.unlink()
    bomb = pickle.dumps(Bomb(mark))
    (folder / file).write_bytes(bomb)
    if sealed and file != "manifest.json":
        seal(folder)
    with pytest.raises(DamagedCheckpointError, match=file):
        read_checkpoint(folder)
    assert not mark.exists()


def seal(folder: Path) -> None:
    """Make the manifest fit the files, as whoever writes checkpoints could."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["manifest_sha256"]
    for name in manifest["sha256"]:
        manifest["sha256"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    own = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({**manifest, "manifest_sha256": own}))


def test_resealing_is_what_the_pickle_test_needs(folder: Path) -> None:
    seal(folder)
    read_checkpoint(folder)


@pytest.mark.parametrize("content", ["[]", "3", "null", "{}", '{"format": 1}', '{"format": 99}', "\xff"])
def test_a_manifest_of_another_kind_is_refused(folder: Path, content: str) -> None:
    (folder / "manifest.json").write_text(content, encoding="latin-1")
    with pytest.raises(DamagedCheckpointError, match=r"manifest\.json"):
        read_checkpoint(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_fifo_in_the_place_of_a_file_is_not_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(DamagedCheckpointError, match=f"{name} .*device, FIFO or socket"):
        read_checkpoint(folder)
    (entry,) = entries(folder)
    assert any(name in problem for problem in problems(entry))


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_the_umask_says_who_may_read_a_checkpoint(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write_checkpoint(tmp_path / "step_00000120", example())
    finally:
        os.umask(before)
    assert {stat.S_IMODE((tmp_path / "step_00000120" / name).stat().st_mode) for name in FILES} == {mode}


def test_a_checkpoint_that_may_not_be_read_is_not_skipped() -> None:
    """Training would go back, and replace it in time."""
    with public_folder() as folder:
        for step in (120, 130):
            write_checkpoint(folder / f"step_{step:08d}", example(step))
        (folder / "step_00000130" / "model.safetensors").chmod(0)
        with no_root():
            with pytest.raises(UsageError, match="let this user read all files in"):
                CheckpointStore(folder, 3).newest()
            with pytest.raises(UsageError, match="let this user read all files in"):
                checkpoint_at(folder / "step_00000130")
