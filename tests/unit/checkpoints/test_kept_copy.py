"""A copy of the newest checkpoint in memory is that checkpoint, is given away once, and is never overwritten."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvdtrain.checkpoints.format import Checkpoint, Position, write_checkpoint
from hvdtrain.checkpoints.kept_copy import kept_copy
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.checkpoints.writer import CheckpointWriter
from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.topology import Topology

Arrays = Mapping[str, Any]


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    kept_copy.forget()
    yield
    kept_copy.forget()


def copied(memory: Arrays, value: float) -> dict[str, Any]:
    """As an adapter copies its state: in the memory of an earlier copy, where it is given one."""
    state = dict(memory) or {"model/w": np.zeros(4, np.float32), "optimizer/m": np.zeros(4, np.float32)}
    for array in state.values():
        array[...] = value
    return state


def saved(folder: Path, values: list[float], keeps: bool) -> CheckpointStore:
    store = CheckpointStore(folder, 9)
    writer = CheckpointWriter(SerialCommunicator(Topology.single()), store, {}, keeps=keeps)
    for step, value in enumerate(values):
        writer.begin(lambda memory, value=value: copied(memory, value), Position(step))  # type: ignore[misc]
        writer.collect()
    return store


def value_of(checkpoint: Checkpoint | None) -> float:
    assert checkpoint is not None
    (value,) = {float(x) for array in checkpoint.state.values() for x in array}
    return value


@pytest.mark.parametrize("keeps", [True, False])
def test_a_kept_checkpoint_is_not_read_from_the_disk(keeps: bool, tmp_path: Path) -> None:
    """What has happened to its file in the meantime is not seen, which shows that it was not read."""
    store = saved(tmp_path, [1.0, 2.0, 3.0, 4.0, 5.0], keeps)
    file = tmp_path / "step_00000004" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    assert value_of(store.newest()) == (5.0 if keeps else 4.0)
    assert value_of(store.newest()) == 4.0, "given away once; the damaged one is passed over"


def test_what_was_kept_before_is_used_again_and_what_is_kept_is_not(tmp_path: Path) -> None:
    store = saved(tmp_path, [1.0, 2.0], keeps=True)
    writer = CheckpointWriter(SerialCommunicator(Topology.single()), store, {}, keeps=True)
    given: list[Arrays] = []
    writer.begin(lambda memory: given.append(memory) or copied(memory, 3.0), Position(2))
    assert dict(given[0]) == {}, "the memory of the second checkpoint is kept until the third is on the disk"
    writer.collect()
    assert value_of(store.newest()) == 3.0


def test_another_checkpoint_is_never_taken_for_it(tmp_path: Path) -> None:
    saved(tmp_path / "own", [1.0, 2.0], keeps=True)
    other = CheckpointStore(tmp_path / "other", 9)
    write_checkpoint(tmp_path / "other" / "step_00000001", Checkpoint(copied({}, 7.0), Position(1), {}))
    assert value_of(other.newest()) == 7.0


def test_the_same_numbers_are_there_either_way(tmp_path: Path) -> None:
    kept = saved(tmp_path / "kept", [1.0, 2.5], keeps=True).newest()
    read = saved(tmp_path / "read", [1.0, 2.5], keeps=False).newest()
    assert kept is not None
    assert read is not None
    assert (kept.position, kept.about) == (read.position, read.about)
    assert kept.state.keys() == read.state.keys()
    for name, array in kept.state.items():
        np.testing.assert_array_equal(array, read.state[name], strict=True)
