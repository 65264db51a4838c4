"""State dicts in torch's format: what is in them comes back, whatever is wrapped around it, and no code is run."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from weight_runs import random_like, write_run

from hvdtrain.errors import UsageError
from hvdtrain.named_arrays import as_numbers, bits_dtype, like_numbers
from hvdtrain.tasks.torch import TorchDigits
from hvdtrain.weights.export import export
from hvdtrain.weights.initial_weights import initial_state
from hvdtrain.weights.named_weights import without_wrappers
from hvdtrain.weights.weight_files import kind_of, read_weights

pytestmark = pytest.mark.timeout(120)
TASK = TorchDigits(width=2)
FRESH = {f"model/{name}": tensor.numpy() for name, tensor in TASK.build_model().state_dict().items()}
WEIGHTS = random_like({name.removeprefix("model/"): array for name, array in FRESH.items()})


def tensors(prefix: str = "") -> dict[str, torch.Tensor]:
    return {prefix + name: torch.from_numpy(array) for name, array in WEIGHTS.items()}


def started(path: Path, task: Any = TASK, state: Any = FRESH) -> dict[str, Any]:
    state = initial_state({**state, "optimizer/x": np.ones(2)}, path, task)
    np.testing.assert_array_equal(state.pop("optimizer/x"), np.ones(2))
    return {name.removeprefix("model/"): array for name, array in state.items()}


def assert_same(first: Any, second: Any) -> None:
    assert set(first) == set(second)
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])
        assert np.asarray(array).dtype == np.asarray(second[name]).dtype


@settings(max_examples=15)
@given(
    wrappers=st.lists(st.sampled_from(["module.", "_orig_mod."]), max_size=2),
    key=st.sampled_from([None, "state_dict", "model", "model_state_dict"]),
    old_format=st.booleans(),
    prefix=st.sampled_from(["", "module."]),
)
def test_a_state_dict_starts_a_training_and_comes_back(
    tmp_path_factory: pytest.TempPathFactory, wrappers: list[str], key: str | None, old_format: bool, prefix: str
) -> None:
    """File → first state → run → export → file: the same tensors, with and without the prefixes of wrappers."""
    folder = tmp_path_factory.mktemp("law")
    content: Any = OrderedDict(tensors("".join(wrappers)))
    if key is not None:  # as PyTorch's ImageNet example saves it
        content = {"epoch": 3, "arch": "cnn", key: content, "best_acc1": torch.tensor(0.5), "optimizer": {"state": {}}}
    torch.save(content, folder / "model_best.pth.tar", _use_new_zipfile_serialization=not old_format)
    first = started(folder / "model_best.pth.tar")
    assert_same(first, WEIGHTS)
    run = write_run(folder / "run", first, "torch", task_args={"width": 2})
    done = export(run, "state-dict", prefix=prefix)
    assert done.path == run / "exports" / "step_00000007.pt"
    exported = torch.load(done.path, weights_only=True)
    assert_same({name: tensor.numpy() for name, tensor in exported.items()}, {prefix + n: a for n, a in first.items()})
    model = nn.DataParallel(TASK.build_model()) if prefix else TASK.build_model()
    model.load_state_dict(exported)


def test_a_module_of_that_name_is_no_wrapper() -> None:
    arrays = {"module.weight": np.ones(1), "module.bias": np.ones(1)}
    assert without_wrappers(arrays, {"module.weight", "module.bias"}) == arrays
    assert list(without_wrappers(arrays)) == ["weight", "bias"]
    mixed = {"module.weight": np.ones(1), "bias": np.ones(1)}
    assert without_wrappers(mixed) == mixed


def test_halves_and_shared_tensors_are_taken(tmp_path: Path) -> None:
    state = {name: tensor.bfloat16() for name, tensor in tensors().items()}
    torch.save(state, tmp_path / "half.pt")
    first = started(tmp_path / "half.pt")
    for name, array in first.items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, state[name].float().numpy())


def test_bfloat16_stays_bfloat16_and_extra_states_stay_fresh(tmp_path: Path) -> None:
    bits = bits_dtype("bfloat16", 2)
    saved = {"w": like_numbers(np.array([1.5, -2.0]), bits), "_extra_state": np.asarray(b'"saved"')}
    run = write_run(tmp_path / "run", saved, "torch")
    fresh = {"model/w": like_numbers(np.zeros(2), bits), "model/_extra_state": np.asarray(b'"fresh"')}
    first = initial_state(fresh, run, TASK)
    assert first["model/w"].dtype == bits
    np.testing.assert_array_equal(as_numbers(first["model/w"]), np.array([1.5, -2.0], np.float32))
    assert first["model/_extra_state"] == b'"fresh"'
    exported = torch.load(export(run, "state-dict").path, weights_only=True)
    assert {name: (tensor.dtype, tensor.tolist()) for name, tensor in exported.items()} == {
        "w": (torch.float32, [1.5, -2.0])
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: (d.pop("conv1.bias"), d.pop("logits.weight")), r"Missing: conv1\.bias, logits\.weight\.\n"),
        (lambda d: d.update({"fc.weight": torch.ones(1)}), r"Unexpected: fc\.weight\.\n"),
        (lambda d: d.update({"conv1.bias": torch.ones(9)}), r"Of another shape: conv1\.bias \[9\] .* \[2\]\.\n"),
        (lambda d: d.update({"conv1.bias": torch.ones(2, dtype=torch.int64)}), "conv1.bias in .* is int64"),
        (lambda d: d.update({"conv1.bias": torch.tensor([1.0, torch.nan])}), "conv1.bias in .* holds NaN"),
        (lambda d: d.update({"conv1.bias": torch.ones(2).to_sparse()}), "else than dense tensors: conv1.bias"),
        (lambda d: d.update({"extra": "text"}), "else than dense tensors: extra"),
    ],
)
def test_what_does_not_fit_is_listed(tmp_path: Path, change: Any, message: str) -> None:
    state = tensors()
    change(state)
    torch.save(state, tmp_path / "bad.pt")
    with pytest.raises(UsageError, match=message):
        started(tmp_path / "bad.pt")


def test_old_batch_norms_lack_a_counter(tmp_path: Path) -> None:
    fresh = {"model/bn.weight": np.ones(2, np.float32), "model/bn.num_batches_tracked": np.array(5)}
    torch.save({"bn.weight": torch.zeros(2)}, tmp_path / "old.pt")
    first = started(tmp_path / "old.pt", state=fresh)
    assert first["bn.num_batches_tracked"] == 5
    assert not first["bn.weight"].any()


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("how", ["zip", "old", "pickle"])
def test_a_malicious_file_is_inert(tmp_path: Path, how: str) -> None:
    trap, path = tmp_path / "trap", tmp_path / "model.pt"
    content = {"state_dict": tensors(), "epoch": Bomb(trap)}
    if how == "pickle":
        path.write_bytes(pickle.dumps({"a": Bomb(trap)}, protocol=2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=how == "zip")
    for read in (lambda: started(path), lambda: export(path, "safetensors")):
        with pytest.raises(UsageError, match="is not plain tensors"):
            read()
    assert not trap.exists()
    assert os.listdir(tmp_path) == ["model.pt"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.ones(2)], "holds no state_dict. It is a list"),
        ({"loss": 0.5, "step": 3}, "holds no state_dict. It is a mapping of 'loss', 'step'"),
        ({}, "holds no state_dict. It is a mapping of nothing"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(UsageError, match=message):
        started(tmp_path / "other.pt")


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    torch.save(tensors(), tmp_path / "cut.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "cut.pt").read_bytes()[:-300])
    (tmp_path / "text.pt").write_text("weights")
    (tmp_path / "empty.pt").write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a.txt", "a")
    for name in ("cut.pt", "text.pt", "empty.pt", "other.zip"):
        with pytest.raises(UsageError, match=f"{name} is not a file of weights"):
            kind_of(tmp_path / name)
    with pytest.raises(UsageError, match="gone.pt cannot be read: No such file"):
        kind_of(tmp_path / "gone.pt")


def test_a_tensorflow_job_is_told_to_convert(tmp_path: Path) -> None:
    torch.save(tensors("module."), tmp_path / "old.pth.tar")
    with pytest.raises(UsageError, match=r"convert it .* hvdtrain export \S+old.pth.tar --format safetensors"):
        read_weights(tmp_path / "old.pth.tar", "torch", "tensorflow")
    done = export(tmp_path / "old.pth.tar", "safetensors")
    assert done.path == tmp_path / "old.safetensors"
    found = read_weights(done.path, kind_of(done.path), "tensorflow")
    assert found.framework == "torch"
    assert_same(found.arrays, WEIGHTS)
