"""Whatever a torch state may hold is restored at every step, or refused by name (the table in docs/state.md)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy_training import Data, Run, Setting, train
from state_rows import REFUSED, REFUSED_AFTER_ONE_STEP, SAVED
from torch_training import open_torch

from hvdtrain.checkpoints.format import read_checkpoint
from hvdtrain.comm.interface import SerialCommunicator
from hvdtrain.engine.interface import RunLimits
from hvdtrain.errors import UsageError
from hvdtrain.topology import Topology

pytestmark = [  # torch warns of types that it is about to leave, or that are new
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
]
EVERY_STEP = RunLimits(2, log_interval=1, checkpoint_interval=1)


def alone(setting: Setting, start: Path | None = None) -> Run:
    checkpoint = read_checkpoint(start) if start else None
    position, state = (checkpoint.position, checkpoint.state) if checkpoint else (None, None)
    return train(setting, SerialCommunicator(Topology.single()), EVERY_STEP, position, state)


def assert_bit_equal(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        expected = (array.dtype, array.shape, array.tobytes())
        assert (other[name].dtype, other[name].shape, other[name].tobytes()) == expected, name


@pytest.mark.parametrize("row", SAVED)
def test_what_is_saved_comes_back_at_every_step(row: str, data: Data, tmp_path: Path) -> None:
    setting = Setting(data, tmp_path, open_adapter=open_torch, task=SAVED[row](), validate=False)
    whole = alone(setting)
    expected = whole.adapter.state()
    folders = setting.store().paths()
    assert len(folders) == 6
    assert_bit_equal(read_checkpoint(folders[-1]).state, expected)
    assert any(array.tobytes() != read_checkpoint(folders[0]).state[n].tobytes() for n, array in expected.items())
    for step, folder in enumerate(folders, start=1):
        resumed = alone(replace(setting, folder=tmp_path / f"from_{step}"), folder)
        assert_bit_equal(resumed.adapter.state(), expected)


@pytest.mark.parametrize("row", REFUSED)
def test_what_is_not_saved_is_refused_before_the_first_step(row: str, data: Data, tmp_path: Path) -> None:
    build, words = REFUSED[row]
    setting = Setting(data, tmp_path, open_adapter=open_torch, task=build(), validate=False)
    with pytest.raises(UsageError) as error:
        open_torch(setting.task, SerialCommunicator(Topology.single()), 1)
    assert words in error.value.fact


@pytest.mark.parametrize("row", REFUSED_AFTER_ONE_STEP)
def test_slots_that_are_not_saved_are_refused_once_they_are_there(row: str, data: Data, tmp_path: Path) -> None:
    build, words = REFUSED_AFTER_ONE_STEP[row]
    setting = Setting(data, tmp_path, open_adapter=open_torch, task=build(), validate=False)
    with pytest.raises(UsageError) as error:
        alone(setting)
    assert words in error.value.fact
    assert setting.store().paths() == []


def test_a_copy_of_unusual_numbers_uses_the_memory_of_an_earlier_one() -> None:
    adapter = open_torch(SAVED["frozen weights of bfloat16"](), SerialCommunicator(Topology.single()), 1)
    earlier = adapter.state()
    again = adapter.state(earlier)
    assert np.shares_memory(again["model/hidden.weight"], earlier["model/hidden.weight"])
