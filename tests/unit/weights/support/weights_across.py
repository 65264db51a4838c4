"""Weights between torch and Keras, and every exported file in a runtime of its own. Run by test_weights_across.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from weight_runs import Arrays, random_like, write_run

from hvdtrain.adapters.keras.adapter import KerasAdapter
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.errors import UsageError
from hvdtrain.models.exchange import to_keras, to_torch
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.task import Task
from hvdtrain.tasks.keras import KerasDigits, KerasSynthetic, KerasText
from hvdtrain.tasks.torch import TorchDigits, TorchSynthetic, TorchText
from hvdtrain.topology import Topology
from hvdtrain.weights.export import FORMATS, export
from hvdtrain.weights.initial_weights import initial_state
from hvdtrain.weights.keras_models import read_into, weights_of
from hvdtrain.weights.named_weights import Exclusion
from hvdtrain.weights.weight_files import kind_of, read_weights

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras' own, in saving
SUPPORT = Path(__file__).parent
PICTURES = {"model": "resnet18", "side": 32, "classes": 5, "records": 8}
TEXT = {"context": 6, "width": 8, "heads": 2, "blocks": 1}
TASKS: dict[str, tuple[Task, Task, dict[str, Any]]] = {
    "digits": (TorchDigits(width=2), KerasDigits(width=2), {"width": 2}),
    "synthetic": (TorchSynthetic(**PICTURES), KerasSynthetic(**PICTURES), PICTURES),  # type: ignore[arg-type]
    "text": (TorchText(**TEXT), KerasText(**TEXT), TEXT),
}
DEEP = {("torch", "savedmodel"), ("keras", "torch-export"), ("torch", "onnx")}
"""Of the formats of a ResNet, which take seconds each: those that cross from one framework to the other, and ONNX."""
OWN = {
    (source, name)
    for source, names in {
        "torch": ("torchscript", "torch-export", "onnx"),
        "keras": ("keras", "savedmodel", "onnx"),
    }.items()
    for name in names
}
"""Of the formats of a transformer: those of the run's own framework."""
EVERY = {(source, name) for source in ("torch", "keras") for name in FORMATS}
BY_KERAS = ("weights-h5", "keras", "savedmodel")


def arrays_of(model: Any) -> Arrays:
    if isinstance(model, torch.nn.Module):
        return {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return {path: variable.value.numpy() for path, variable in weights_of(model).items()}


def model_inputs(name: str, rows: int = 3) -> NDArray[Any]:
    """As Keras models take them."""
    random = np.random.default_rng(1)
    if name == "text":
        return random.integers(0, 256, (rows, TEXT["context"])).astype(np.int32)
    return random.normal(0, 1, (rows, 8, 8, 1) if name == "digits" else (rows, 32, 32, 3)).astype(np.float32)


def for_torch(inputs: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(inputs.transpose(0, 3, 1, 2)) if inputs.ndim == 4 else inputs


def answer(model: Any, inputs: NDArray[Any]) -> NDArray[Any]:
    if isinstance(model, torch.nn.Module):
        with torch.no_grad():
            answered: NDArray[Any] = model.eval()(torch.from_numpy(for_torch(inputs))).numpy()
            return answered
    return np.asarray(model(tf.constant(inputs), training=False).numpy())


def close(first: NDArray[Any], second: NDArray[Any]) -> None:
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-5 * max(1.0, float(np.abs(second).max())))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of each task: its name, its models, and runs of both frameworks with the same weights."""
    return {name: made_pair(name, tmp_path_factory.mktemp(name)) for name in TASKS}


@pytest.fixture(params=sorted(TASKS))
def pair(request: pytest.FixtureRequest, pairs: Any) -> Any:
    """One of `pairs`."""
    return pairs[request.param]


def made_pair(name: str, folder: Path) -> Any:
    models = [task.build_model() for task in TASKS[name][:2]]
    torch.manual_seed(0)
    weights = arrays_of(models[0])
    if name == "synthetic":  # statistics that differ from a fresh model's
        weights |= random_like({n: a for n, a in weights.items() if "running" in n})
    models[0].load_state_dict({n: torch.from_numpy(np.array(a)) for n, a in weights.items()})
    in_keras = to_keras(weights, weights_of(models[1]))
    for path, variable in weights_of(models[1]).items():
        variable.assign(in_keras[path])
    arguments = TASKS[name][2]
    runs = [
        write_run(folder / "torch_run", weights, "torch", name, arguments),
        write_run(folder / "keras_run", in_keras, "tensorflow", name, arguments),
    ]
    return name, models, runs


def test_from_torch_to_keras_and_back_is_identity(pair: Any) -> None:
    """Through folders and through files; and the models answer alike."""
    name, models, runs = pair
    inputs = model_inputs(name)
    close(answer(models[1], inputs), answer(models[0], inputs))
    state = {f"model/{n}": np.zeros_like(a) for n, a in arrays_of(models[0]).items()}
    fresh = {f"model/{n}": np.zeros_like(a) for n, a in arrays_of(models[1]).items()}
    expected = arrays_of(models[0]), arrays_of(models[1])
    for format_name in (None, "safetensors", "weights-h5"):
        sources = [run if format_name is None else export(run, format_name, overwrite=True).path for run in runs]
        for source in sources:
            assert_same(initial_state(state, source, TASKS[name][0]), expected[0], skip="num_batches_tracked")
            assert_same(initial_state(fresh, source, TASKS[name][1]), expected[1])


def assert_same(state: Arrays, expected: Arrays, skip: str = " ") -> None:
    assert {name.removeprefix("model/") for name in state} == set(expected)
    for name, array in expected.items():
        if not name.endswith(skip):
            np.testing.assert_array_equal(state[f"model/{name}"], array)


def start_loader(framework: str, folder: Path, names: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, str(SUPPORT / "load_exports.py"), framework, *(str(folder / name) for name in names)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder)


def test_every_format_answers_as_the_model(pairs: Any, tmp_path: Path) -> None:
    """In processes that know nothing of hvdtrain but the layer that a Keras file of ours may name."""
    for name, (_, _, runs) in pairs.items():
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "inputs.npy", model_inputs(name, 5))
        for source, run in zip(("torch", "keras"), runs, strict=True):
            for format_name, chosen in FORMATS.items():
                if chosen.whole and (source, format_name) in {"synthetic": DEEP, "text": OWN}.get(name, EVERY):
                    done = export(run, format_name, tmp_path / name / f"{source}_{format_name}{chosen.suffix}")
                    assert "batch" in done.takes
    loaders = [start_loader(framework, tmp_path, list(pairs)) for framework in ("torch", "keras")]
    for loader in loaders:
        _, errors = loader.communicate(timeout=600)
        assert loader.returncode == 0, errors
    for name, (_, models, _) in pairs.items():
        answers = sorted((tmp_path / name).glob("*.answer.npy"))
        assert len(answers) == {"synthetic": len(DEEP), "text": len(OWN)}.get(name, 10)
        expected = answer(models[0], model_inputs(name, 5))
        for file in answers:
            close(np.load(file), expected)


def test_a_keras_run_s_state_dict_is_torch_s(pair: Any) -> None:
    name, models, runs = pair
    model = TASKS[name][0].build_model()
    model.load_state_dict(torch.load(export(runs[1], "state-dict").path, weights_only=True))
    close(answer(model, model_inputs(name)), answer(models[0], model_inputs(name)))


def test_keras_files_of_a_model_with_other_names(tmp_path: Path) -> None:
    """Layers that were named by Keras itself, dropout's seeds, an optimizer: Keras' own rules say what is whose."""

    def build() -> keras.Model:
        layers = keras.layers
        return keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Dropout(0.5), layers.Dense(2)])

    class Named(KerasDigits):
        def build_model(self) -> keras.Model:
            return build()

    saved, fresh = build(), build()
    saved.compile(keras.optimizers.Adam(), "mse")
    saved.fit(np.ones((2, 4)), np.ones((2, 2)), verbose=0)
    state = {f"model/{n}": np.zeros_like(a) for n, a in arrays_of(fresh).items()}
    expected = dict(zip(arrays_of(fresh), arrays_of(saved).values(), strict=True))
    saved.save_weights(tmp_path / "a.weights.h5")
    saved.save(tmp_path / "a.keras")
    for name in ("a.weights.h5", "a.keras"):
        assert_same(initial_state(state, tmp_path / name, Named()), expected)
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(5)]).save(tmp_path / "b.keras")
    with pytest.raises(
        UsageError, match=r"Of another shape: layers/dense_1/vars/0 \[3, 5\] where the model has \[3, 2\]"
    ):
        initial_state(state, tmp_path / "b.keras", Named())
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]).save(tmp_path / "c.keras")
    with pytest.raises(UsageError, match="Missing: layers/dense_1/vars/0, layers/dense_1/vars/1"):
        initial_state(state, tmp_path / "c.keras", Named())


def test_a_file_of_keras_is_read_with_the_model_that_is_trained(tmp_path: Path) -> None:
    class Kept(KerasDigits):
        built = 0

        def build_model(self) -> keras.Model:
            self.built += 1
            self.kept = super().build_model()
            return self.kept

    saved = KerasDigits(width=2).build_model()
    saved.save_weights(tmp_path / "a.weights.h5")
    task = Kept(width=2)
    adapter = KerasAdapter(task, Topology.single(), 1, 0.1, TrainingOptions())
    fresh = adapter.state()
    first = initial_state(adapter.view_state(), tmp_path / "a.weights.h5", task, "logits*", adapter.model)
    adapter.load_state(first)
    assert (task.built, task.kept is adapter.model) == (1, True)
    old = dict(
        zip(
            (n for n in fresh if n in {f"model/{w}" for w in weights_of(adapter.model)}),
            arrays_of(saved).values(),
            strict=True,
        )
    )
    for name, array in adapter.state().items():
        np.testing.assert_array_equal(array, fresh[name] if "logits" in name else old.get(name, fresh[name]))


def test_files_from_before_keras_3(tmp_path: Path) -> None:
    model = TASKS["digits"][1].build_model()
    model.save(tmp_path / "whole.h5")  # which Keras 3 still writes as Keras 2 did
    for task, expected in zip(TASKS["digits"][:2], (to_torch(arrays_of(model)), arrays_of(model)), strict=True):
        state = {f"model/{n}": np.zeros_like(a) for n, a in expected.items()}
        assert_same(initial_state(state, tmp_path / "whole.h5", task), expected)


def test_a_new_head_stays_fresh_and_all_else_comes_from_a_run_or_file_of_either_framework(tmp_path: Path) -> None:
    """A net of 5 classes from one of 3. The names that do not fit, which the refusal tells, are those to exclude."""
    small: dict[str, Any] = {"model": "cnn", "side": 8, "classes": 3}
    old = random_like(arrays_of(TorchSynthetic(**small).build_model()))
    old_in_keras = to_keras(old, arrays_of(KerasSynthetic(**small).build_model()))
    torch_run = write_run(tmp_path / "torch", old, "torch", "synthetic", small)
    keras_run = write_run(tmp_path / "keras", old_in_keras, "tensorflow", "synthetic", small)
    files = export(torch_run, "state-dict").path, export(keras_run, "weights-h5").path
    for task, given, sources in (
        (TorchSynthetic(**{**small, "classes": 5}), old, (torch_run, keras_run, *files)),
        (KerasSynthetic(**{**small, "classes": 5}), old_in_keras, (torch_run, keras_run, files[1])),
    ):
        fresh = {f"model/{n}": a for n, a in arrays_of(task.build_model()).items()}
        for source in sources:
            with pytest.raises(UsageError, match="do not fit the model") as refused:
                initial_state(fresh, source, task)
            told = refused.value.hint.partition("--init-weights-exclude '")[2].removesuffix("'.")
            for exclude in (told, "logits?*"):
                first = initial_state(fresh, source, task, exclude)
                for name, array in fresh.items():
                    expected = array if "logits" in name else given[name.removeprefix("model/")]
                    np.testing.assert_array_equal(first[name], expected)
            with pytest.raises(UsageError, match=r"--init-weights-exclude names fc\.\*"):
                initial_state(fresh, source, task, f"{told},fc.*")
            with pytest.raises(UsageError, match="excludes every weight of the model"):
                initial_state(fresh, source, task, "*")


def test_averages_start_from_given_weights_too(tmp_path: Path) -> None:
    task = TASKS["digits"][0]
    weights = random_like(arrays_of(task.build_model()))
    state = {f"{part}/{n}": np.zeros_like(a) for part in ("model", "ema") for n, a in weights.items()}
    first = initial_state(state, write_run(tmp_path / "run", weights, "torch"), task)
    for name, array in weights.items():
        np.testing.assert_array_equal(first[f"ema/{name}"], array)


def test_averaged_weights_are_exported_to_the_other_framework(tmp_path: Path) -> None:
    weights = random_like(arrays_of(TASKS["digits"][0].build_model()))
    averages = random_like(weights, seed=5)
    run = write_run(tmp_path / "run", weights, "torch", task_args={"width": 2}, averages=averages)
    done = export(run, "weights-h5", averaged=True)
    found = to_torch(read_weights(done.path, kind_of(done.path)).arrays)
    for name, array in averages.items():
        np.testing.assert_array_equal(found[name], array)


class Masked(keras.layers.Layer):
    """Has a weight of bool, which cannot hold the number of a weight."""

    def build(self, shape: Any) -> None:
        self.mask = self.add_weight(shape=(shape[-1],), dtype="bool", initializer="ones", trainable=False)

    def call(self, inputs: Any) -> Any:
        return inputs * keras.ops.cast(self.mask, inputs.dtype)


def test_a_keras_model_with_weights_that_hold_no_numbers_loads_its_own_file(tmp_path: Path) -> None:
    def build() -> keras.Model:
        layers = [keras.Input((4,)), keras.layers.Dense(3, name="a"), Masked(name="m"), keras.layers.Dense(2, name="b")]
        return keras.Sequential(layers)

    model = build()
    model.save_weights(tmp_path / "own.weights.h5")
    expected, names = arrays_of(model), list(arrays_of(model))
    found = read_into(build(), tmp_path / "own.weights.h5", names, Exclusion(None))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_models_of_one_framework_only_are_refused_by_name(tmp_path: Path) -> None:
    arguments = {**PICTURES, "model": "squeezenet1_1"}
    weights = arrays_of(TorchSynthetic(**arguments).build_model())  # type: ignore[arg-type]
    run = write_run(tmp_path / "run", weights, "torch", "synthetic", arguments)
    for format_name in BY_KERAS:
        with pytest.raises(UsageError, match="There is no model 'squeezenet1_1' in tensorflow"):
            export(run, format_name)
    assert not (run / "exports").exists() or not list((run / "exports").iterdir())
    assert load_file(export(run, "safetensors").path).keys() == weights.keys()


class Own(TorchDigits):
    """A task of one's own: no example, so its data are opened."""

    example = Task.example


def test_a_task_without_an_example_shows_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDTRAIN_CACHE_DIR", str(tmp_path / "cache"))
    weights = arrays_of(Own(2).build_model())
    run = write_run(tmp_path / "run", weights, "torch", "weights_across:Own", {"width": 2})
    assert export(run, "torch-export").takes == "input float32 [batch, 1, 8, 8]"
    assert Own(2).open_data(DataAccess(None, tmp_path / "cache" / "data")).validation is not None
    gone = write_run(
        tmp_path / "gone", weights, "torch", "weights_across:Own", {"width": 2}, config={"data": {"dir": "/none"}}
    )
    with pytest.raises(UsageError, match="Own has no example\\(\\), and its data cannot be opened"):
        export(gone, "torch-export")
    wrong = write_run(tmp_path / "wrong", weights, "torch", "weights_across:Own", {"width": 3})
    with pytest.raises(UsageError, match=r"Of another shape: conv1.weight \[2, 1, 3, 3\] where the model has \[3, 1"):
        export(wrong, "torchscript")


def test_what_data_told_a_task_is_kept(tmp_path: Path) -> None:
    """Classes of a folder of photos, in a checkpoint's manifest: the model is built without the data."""
    arguments = {"model": "cnn", "side": 8}
    task = TorchSynthetic(model="cnn", side=8, classes=3)
    run = write_run(
        tmp_path / "run", arrays_of(task.build_model()), "torch", "imagenet", arguments, found={"classes": 3}
    )
    assert export(run, "torchscript").takes == "input float32 [batch, 3, 8, 8]"
    with pytest.raises(UsageError, match=r"logits.weight \[3, 128\] where the model has \[1000, 128\]"):
        export(
            write_run(tmp_path / "old", arrays_of(task.build_model()), "torch", "imagenet", arguments), "torchscript"
        )
