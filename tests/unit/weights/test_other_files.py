"""safetensors, HDF5 and run folders, read without any framework; and files that appear whole or not at all."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from weight_runs import write_run

from hvdtrain.cli.main import main
from hvdtrain.config.train_config import RunConfig
from hvdtrain.errors import UsageError
from hvdtrain.weights.export import export, replacing, require_free
from hvdtrain.weights.keras_files import read_keras
from hvdtrain.weights.named_weights import NamedWeights
from hvdtrain.weights.weight_files import kind_of, read_weights

pytestmark = pytest.mark.timeout(60)
LINEAR = {"fc.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "fc.bias": np.ones(2, np.float32)}


def read(path: Path) -> NamedWeights:
    return read_weights(path, kind_of(path))


@pytest.mark.parametrize(
    ("names", "metadata", "framework"),
    [
        (["fc.weight"], None, "torch"),
        (["fc/kernel"], None, "tensorflow"),
        (["a/b.weight"], {"format": "pt"}, "torch"),
        (["w"], {"format": "keras"}, "tensorflow"),
    ],
)
def test_safetensors_say_whose_names_they_have(tmp_path: Path, names: list[str], metadata: Any, framework: str) -> None:
    save_file({name: np.ones(2) for name in names}, tmp_path / "any.name", metadata)
    found = read(tmp_path / "any.name")
    assert (list(found.arrays), found.framework) == (names, framework)


def test_bfloat16_becomes_float32_without_loss(tmp_path: Path) -> None:
    halves = np.array([0x3F80, 0xC000, 0x7F80, 0x0001], np.uint16)  # 1, -2, inf, the smallest
    header = json.dumps(
        {
            "count": {"dtype": "I64", "shape": [], "data_offsets": [0, 8]},
            "half": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [8, 16]},
            "flag": {"dtype": "BOOL", "shape": [1], "data_offsets": [16, 17]},
        }
    ).encode()
    content = len(header).to_bytes(8, "little") + header + np.array(7).tobytes() + halves.tobytes() + b"\1"
    (tmp_path / "half.safetensors").write_bytes(content)
    arrays = read(tmp_path / "half.safetensors").arrays
    np.testing.assert_array_equal(arrays["half"], np.float32([[1, -2], [np.inf, 2.0**-133]]))
    assert arrays["count"] == 7
    assert arrays["count"].shape == ()
    assert arrays["flag"].tolist() == [True]


def test_damaged_safetensors_are_refused(tmp_path: Path) -> None:
    save_file(LINEAR, tmp_path / "a.safetensors")
    (tmp_path / "a.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes()[:-1])
    with pytest.raises(UsageError, match="is not a valid safetensors file"):
        read(tmp_path / "a.safetensors")


def test_a_run_is_read_by_any_of_its_paths(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", LINEAR, "torch")
    step = run / "checkpoints" / "step_00000007"
    for path in (run, run / "checkpoints", step, step / "model.safetensors"):
        found = read(path)
        assert (found.framework, set(found.arrays)) == ("torch", set(LINEAR))
        done = export(path, "safetensors", overwrite=True)
        assert done.path == run / "exports" / "step_00000007.safetensors"
    for name, array in load_file(done.path).items():
        np.testing.assert_array_equal(array, LINEAR[name])
    with pytest.raises(UsageError, match=r"holds no checkpoint. It was given as --init-weights"):
        read(tmp_path)


def test_averages_take_the_place_of_weights(tmp_path: Path) -> None:
    averages = {"fc.weight": LINEAR["fc.weight"] + 10}  # buffers have none
    run = write_run(tmp_path / "run", LINEAR, "torch", averages=averages)
    arrays = load_file(export(run, "safetensors", averaged=True).path)
    np.testing.assert_array_equal(arrays["fc.weight"], averages["fc.weight"])
    np.testing.assert_array_equal(arrays["fc.bias"], LINEAR["fc.bias"])
    plain = write_run(tmp_path / "plain", LINEAR, "torch")
    with pytest.raises(UsageError, match="holds no averages of its weights"):
        export(plain, "safetensors", averaged=True)


def test_averages_of_tied_weights_have_all_their_names(tmp_path: Path) -> None:
    """A checkpoint has them under the first. Constant arrays are equal by chance."""
    weight, zeros = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros(3, np.float32)
    weights = {"a.weight": weight, "b.weight": weight.copy(), "a.bias": zeros, "bn.running_mean": zeros.copy()}
    averages = {"a.weight": weight / 2, "a.bias": zeros + 1}
    run = write_run(tmp_path / "run", weights, "torch", averages=averages)
    arrays = load_file(export(run, "safetensors", averaged=True).path)
    np.testing.assert_array_equal(arrays["b.weight"], weight / 2)
    np.testing.assert_array_equal(arrays["bn.running_mean"], zeros)


def keras_3(path: Path, layers: dict[str, tuple[str, list[Any]]], top: str = "layers") -> None:
    """A file as Keras 3 lays it out: group of a layer → (its name, its variables)."""
    with h5py.File(path, "w") as file:
        file.create_group("vars")
        file["optimizer/vars/0"] = np.array(3)
        file[f"{top}/dropout/seed_generator/vars/0"] = np.zeros(2, np.uint32)
        for group, (name, variables) in layers.items():
            place = file.create_group(f"{top}/{group}/vars")
            place.attrs["name"] = name
            for number, variable in enumerate(variables):
                place[str(number)] = variable


@pytest.mark.parametrize("top", ["layers", "_layer_checkpoint_dependencies"])
def test_keras_layers_are_named(tmp_path: Path, top: str) -> None:
    layers = {
        "dense_1": ("fc", [np.ones((3, 2)), np.zeros(2)]),
        "conv2d": ("conv", [np.ones((3, 3, 1, 2))]),
        "batch_normalization_3": ("bn", [np.full(2, i) for i in range(4)]),
    }
    keras_3(tmp_path / "a.weights.h5", layers, top)
    with zipfile.ZipFile(tmp_path / "b.keras", "w") as archive:
        archive.write(tmp_path / "a.weights.h5", "model.weights.h5")
        archive.writestr("config.json", "no config is looked at")
    for path in (tmp_path / "a.weights.h5", tmp_path / "b.keras"):
        assert kind_of(path) == "keras"
        arrays = read_keras(path)
        assert arrays.keys() == {
            *("fc/kernel", "fc/bias", "conv/kernel"),
            *(f"bn/{kind}" for kind in ("gamma", "beta", "moving_mean", "moving_variance")),
        }
        assert arrays["bn/moving_variance"].tolist() == [3, 3]


def test_layers_without_a_counterpart_are_named(tmp_path: Path) -> None:
    keras_3(tmp_path / "a.weights.h5", {"lstm": ("lstm", [np.ones(2)] * 3)})
    with pytest.raises(UsageError, match="layers/lstm .* a lstm of 3 variables has no counterpart in torch"):
        read_keras(tmp_path / "a.weights.h5")
    keras_3(tmp_path / "b.weights.h5", {"dense": ("fc", [np.ones(2)]), "dense_1": ("fc", [np.ones(2)])})
    with pytest.raises(UsageError, match="two layers of this name"):
        read_keras(tmp_path / "b.weights.h5")


def test_hdf5_cannot_reach_other_files_or_explode(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(64))
    keras_3(tmp_path / "other.h5", {"dense": ("fc", [np.ones((3, 2))])})
    makers = {
        "external": lambda g: g.create_dataset("0", (4,), "f4", external=[(str(tmp_path / "secret"), 0, 16)]),
        "link": lambda g: g.__setitem__("0", h5py.ExternalLink("other.h5", "/layers/dense/vars/0")),
        "soft": lambda g: g.__setitem__("0", h5py.SoftLink("/layers/dense/vars/0")),
        "sparse": lambda g: g.create_dataset("0", (2**40,), "f4", chunks=(1024,)),
        "packed": lambda g: g.create_dataset("0", data=np.zeros(2**16), compression="gzip"),
        "text": lambda g: g.create_dataset("0", data="text"),
    }
    for name, make in makers.items():
        path = tmp_path / f"{name}.weights.h5"
        with h5py.File(path, "w") as file:
            make(file.create_group("layers/dense/vars"))
        with pytest.raises(UsageError, match="layers/dense/vars/0 is not a plain array of numbers in this file"):
            read_keras(path)


def test_damaged_hdf5_is_refused(tmp_path: Path) -> None:
    keras_3(tmp_path / "a.weights.h5", {"dense": ("fc", [np.ones((300, 2))])})
    (tmp_path / "a.weights.h5").write_bytes((tmp_path / "a.weights.h5").read_bytes()[:-2000])
    with pytest.raises(UsageError, match="is not a valid weights file of Keras"):
        read_keras(tmp_path / "a.weights.h5")


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.bin"
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_bytes(bytes([1 // (temporary.write_bytes(b"half") - 4)]))
    assert not list(path.parent.iterdir())
    for content in (b"one", b"two"):
        with replacing(path) as temporary:
            assert temporary.name.endswith("out.bin")
            temporary.write_bytes(content)
            assert not path.exists() or path.read_bytes() == b"one"
        assert path.read_bytes() == content
    assert [entry.name for entry in path.parent.iterdir()] == ["out.bin"]


def test_folders_are_replaced_only_by_their_like(tmp_path: Path) -> None:
    path = tmp_path / "model"
    for number in ("1", "2"):
        with replacing(path) as temporary:
            temporary.mkdir()
            (temporary / "saved_model.pb").write_text(number)
            (temporary / f"only_{number}").touch()
    assert {entry.name for entry in path.iterdir()} == {"saved_model.pb", "only_2"}
    require_free(path, overwrite=True)
    with pytest.raises(UsageError, match="is there already"):
        require_free(path, overwrite=False)
    (path / "saved_model.pb").unlink()
    with pytest.raises(UsageError, match="is a folder, and no SavedModel"):
        require_free(path, overwrite=True)


@pytest.mark.parametrize("name", ["config.yaml", "checkpoints/step_00000001/model.safetensors"])
def test_files_of_a_run_are_never_replaced(name: str, tmp_path: Path) -> None:
    for path in (tmp_path / "metrics.jsonl", tmp_path / name, tmp_path / "exports" / "model.onnx"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with pytest.raises(UsageError, match="belongs to the run in"):
        require_free(tmp_path / name, overwrite=True)
    (tmp_path / "link").symlink_to(tmp_path / name)
    with pytest.raises(UsageError, match="belongs to the run in"):
        require_free(tmp_path / "link", overwrite=True)
    require_free(tmp_path / "exports" / "model.onnx", overwrite=True)


def test_only_files_are_overwritten_and_links_are_followed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="FIFO"):
        require_free(tmp_path / "fifo", overwrite=True)
    (tmp_path / "models").mkdir()
    for name in ("file", "folder"):
        link = tmp_path / name
        link.symlink_to(Path("models") / name)
        for number in ("1", "2"):
            with replacing(link) as temporary:
                if name == "folder":
                    temporary.mkdir()
                (temporary / "saved_model.pb" if name == "folder" else temporary).write_text(number)
        assert link.is_symlink()
    assert (tmp_path / "models" / "file").read_text() == (tmp_path / "folder" / "saved_model.pb").read_text() == "2"
    assert sorted(entry.name for entry in (tmp_path / "models").iterdir()) == ["file", "folder"]


def test_the_command_refuses_what_cannot_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", LINEAR, "torch", task="mine:Mine")
    out = str(tmp_path / "out.safetensors")
    assert main(["export", str(run), "--output", out]) == 0
    assert "2 arrays of" in capsys.readouterr().out
    wrong = {
        "is there already": [str(run), "--output", out],
        "mine:Mine is a torch task of your own": [str(run), "--format", "keras"],
        "--prefix module. is given with --format onnx": [str(run), "--format", "onnx", "--prefix", "module."],
        "Keras reads such a file by its name's end": [str(run), "--format", "keras", "--output", "a.h5"],
        "--format keras needs a run": [out, "--format", "keras"],
        "invalid choice: 'onx'": [str(run), "--format", "onx"],
        "gone cannot be read: No such file or directory. There are none to take.": [str(run / "gone")],
    }
    for message, argv in wrong.items():
        code, error = main(["export", *argv]), capsys.readouterr().err
        assert (code, error.count("HINT: ")) == (2, 1), error
        assert message in error


def test_a_training_starts_from_one_thing() -> None:
    with pytest.raises(UsageError, match="--init-weights a.pt is given with --resume RUN"):
        RunConfig(init_weights="a.pt", resume="RUN")
    assert RunConfig(init_weights="a.pt", resume="never").init_weights == "a.pt"
