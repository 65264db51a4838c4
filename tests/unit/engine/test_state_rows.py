"""Whatever a torch state may hold is restored at every step, or refused by name (the table in docs/state.md)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import Forker
from support.numpy_training import Data, Run, Setting, train
from support.state_models import MovingMomentum
from support.state_rows import REFUSED, REFUSED_AFTER_ONE_STEP, SAVED
from support.torch_training import open_torch

from hvdtrain.checkpoints.format import read_checkpoint
from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.engine.limits import RunLimits
from hvdtrain.errors import UsageError
from hvdtrain.topology import Topology

pytestmark = [  # torch warns of types that it is about to leave, or that are new
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
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
    setting = Setting(data, tmp_path, open_adapter=open_torch, task=SAVED[row](), sets=())
    whole = alone(setting)
    expected = whole.adapter.state()
    folders = setting.store().paths()
    assert len(folders) == 6
    assert_bit_equal(read_checkpoint(folders[-1]).state, expected)
    assert any(array.tobytes() != read_checkpoint(folders[0]).state[n].tobytes() for n, array in expected.items())
    for step, folder in enumerate(folders, start=1):
        resumed = alone(replace(setting, folder=tmp_path / f"from_{step}"), folder)
        assert_bit_equal(resumed.adapter.state(), expected)


def test_a_momentum_that_a_callback_has_set_comes_back(data: Data, tmp_path: Path) -> None:
    task = MovingMomentum()
    setting = Setting(data, tmp_path, open_adapter=open_torch, task=task, sets=(), callbacks=(task.callback,))
    expected = alone(setting).adapter.state()
    for step, folder in enumerate(setting.store().paths(), start=1):
        resumed = alone(replace(setting, folder=tmp_path / f"from_{step}"), folder)
        assert_bit_equal(resumed.adapter.state(), expected)


@pytest.mark.parametrize("row", REFUSED)
def test_what_is_not_saved_is_refused_before_the_first_step(row: str, data: Data, tmp_path: Path) -> None:
    build, words = REFUSED[row]
    setting = Setting(data, tmp_path, open_adapter=open_torch, task=build(), sets=())
    with pytest.raises(UsageError) as error:
        open_torch(setting.task, SerialCommunicator(Topology.single()), 1)
    assert words in error.value.fact


@pytest.mark.parametrize("row", REFUSED_AFTER_ONE_STEP)
def test_slots_that_are_not_saved_are_refused_once_they_are_there(row: str, data: Data, tmp_path: Path) -> None:
    build, words = REFUSED_AFTER_ONE_STEP[row]
    setting = Setting(data, tmp_path, open_adapter=open_torch, task=build(), sets=())
    with pytest.raises(UsageError) as error:
        alone(setting)
    assert words in error.value.fact
    assert setting.store().paths() == []


def test_a_copy_of_unusual_numbers_uses_the_memory_of_an_earlier_one() -> None:
    adapter = open_torch(SAVED["frozen weights of bfloat16"](), SerialCommunicator(Topology.single()), 1)
    earlier = adapter.state()
    again = adapter.state(earlier)
    assert np.shares_memory(again["model/hidden.weight"], earlier["model/hidden.weight"])


def test_what_a_keras_model_and_its_optimizer_hold(keras_forker: Forker, data: Data, tmp_path: Path) -> None:
    """In a process of its own: TensorFlow shall not meet torch in this one."""
    script = Path(__file__).parents[2] / "support" / "scripts" / "keras_state_rows.py"
    done = keras_forker.run_python([str(script), str(data.folder), str(tmp_path)], tmp_path)
    assert done.code == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["different"] == {str(step): [] for step in range(1, 7)}
    assert result["unequal"] == []  # what was averaged on one rank
    held = {name.rpartition("held_")[2] for name in result["changed"] if "/held_" in name}
    assert held == {"float16", "float32", "float64", "bfloat16", "complex64", "complex128"} | {
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    } - {"bool"}  # which is True after the first step
    assert {"model/holder/alone", "optimizer/k"} <= {*result["changed"]}
    assert result["refused"] == {
        "weights of bfloat16": "The trainable variable 'half/kernel' is bfloat16.",
        "weights of complex64": "The trainable variable 'weighted/w' is complex64.",
        "texts": "The variable 'weighted/w' holds texts.",
        "a variable of TensorFlow's in a layer": "The layer 'raw' keeps a tf.Variable in 'counts'.",
        "a variable of TensorFlow's in nested containers": "The layer 'raw' keeps a tf.Variable in 'counts'.",
        "a variable of TensorFlow's in the optimizer": "The optimizer RawCounting keeps a tf.Variable in 'count'.",
    }
