"""What torch and Keras must agree on. Run in a process of its own, since it loads both: see test_both_frameworks.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from numpy.typing import NDArray
from picture_files import write_mnist, write_photo_tars

from data_sharding import LoadedBatch, RecordReader, ShardLoader, ShardPlan
from data_sharding.sample_random import SampleRandom
from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.adapters.keras.adapter import KerasAdapter
from hvdtrain.adapters.torch.adapter import TorchAdapter
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.errors import UsageError
from hvdtrain.models.exchange import to_keras, to_torch
from hvdtrain.models.keras import zoo as keras_zoo
from hvdtrain.models.keras.zoo import RESNETS
from hvdtrain.models.torch import zoo as torch_zoo
from hvdtrain.task.data_access import DataAccess
from hvdtrain.tasks.keras import KerasDigits, KerasImageNet, KerasMnist, KerasText
from hvdtrain.tasks.text import NOTHING
from hvdtrain.tasks.torch import TorchDigits, TorchImageNet, TorchMnist, TorchText
from hvdtrain.topology import Topology

Arrays = dict[str, NDArray[Any]]
ONE = Topology.single()


def torch_weights(model: torch.nn.Module) -> Arrays:
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def keras_weights(model: keras.Model) -> Arrays:
    return {variable.path: variable.value.numpy() for variable in model.variables}


def give_to_keras(model: keras.Model, weights: Arrays) -> None:
    converted = to_keras(weights, [variable.path for variable in model.variables])
    for variable in model.variables:
        variable.assign(converted[variable.path])


def stir(model: torch.nn.Module) -> None:
    """BatchNorm's weights and statistics to numbers that differ from those of a fresh model, and from each other."""
    random = torch.manual_seed(3)
    for name, tensor in model.state_dict().items():
        if tensor.ndim == 1:
            positive = name.endswith(("weight", "var"))
            tensor.copy_(0.2 * torch.randn(tensor.shape, generator=random) + positive).clamp_(
                min=0.05 if positive else -9
            )


def outputs(torch_model: Any, keras_model: Any, shape: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[Any]]:
    inputs = np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)
    torch_model.eval()
    with torch.no_grad():
        first = torch_model(torch.from_numpy(inputs).permute(0, 3, 1, 2)).numpy()
    return first, keras_model(inputs, training=False).numpy()


@pytest.mark.parametrize(("name", "side", "classes"), [("resnet18", 32, 10), ("resnet18", 96, 7), ("resnet50", 32, 10)])
def test_a_resnet_answers_alike_in_both_frameworks(name: str, side: int, classes: int) -> None:
    torch_model, keras_model = torch_zoo.build_model(name, classes, side), keras_zoo.build_model(name, classes, side)
    stir(torch_model)
    give_to_keras(keras_model, torch_weights(torch_model))
    first, second = outputs(torch_model, keras_model, (2, side, side, 3))
    np.testing.assert_allclose(second, first, rtol=1e-4, atol=1e-4 * np.abs(first).max())


def test_weights_come_back_as_they_were() -> None:
    """Through Keras names and axes, counters of batches aside; torch takes them as its own."""
    model = torch_zoo.build_model("resnet18", 10, 32)
    stir(model)
    weights, keras_model = torch_weights(model), keras_zoo.build_model("resnet18", 10, 32)
    give_to_keras(keras_model, weights)
    converted = to_torch(keras_weights(keras_model))
    assert converted.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(converted[name], array)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in converted.items()})


def test_the_family_has_torchvision_s_blocks() -> None:
    models = torch_zoo._torchvision_models()
    for name, (make_block, counts) in RESNETS.items():
        with torch.device("meta"):
            stages = [getattr(models.get_model(name), f"layer{number}") for number in (1, 2, 3, 4)]
        assert tuple(map(len, stages)) == counts
        kind = {"_basic_block": models.resnet.BasicBlock, "_bottleneck": models.resnet.Bottleneck}[make_block.__name__]
        assert all(type(block) is kind for stage in stages for block in stage)


def test_other_architectures_are_refused() -> None:
    """Keras applications' ResNet50 has biases, and names of its own."""
    weights = {"conv1.weight": np.zeros((64, 3, 7, 7)), "bn1.num_batches_tracked": np.zeros((), np.int64)}
    assert to_keras(weights, ["conv1/kernel"])["conv1/kernel"].shape == (7, 7, 3, 64)
    with pytest.raises(
        UsageError, match="The two models differ: conv1_conv.weight only in Keras, conv1.weight only in"
    ):
        to_keras(weights, ["conv1_conv/kernel"])
    with pytest.raises(UsageError, match="has no counterpart in torch"):
        to_torch({"conv1/depthwise_kernel": np.zeros((3, 3, 1, 1))})


def test_the_digits_network_answers_alike() -> None:
    torch_model, keras_model = TorchDigits().build_model(), KerasDigits().build_model()
    torch_model.load_state_dict(
        {name: torch.from_numpy(array) for name, array in to_torch(keras_weights(keras_model)).items()}
    )
    first, second = outputs(torch_model, keras_model, (5, 8, 8, 1))
    np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("pack", [False, True])
def test_the_transformer_answers_alike(pack: bool) -> None:
    options: dict[str, Any] = {"context": 12, "width": 16, "heads": 2, "blocks": 2, "pack": pack}
    tasks = TorchText(**options), KerasText(**options)
    torch_model, keras_model = tasks[0].build_model(), tasks[1].build_model()
    stir(torch_model)
    give_to_keras(keras_model, torch_weights(torch_model))
    text = np.random.default_rng(0).integers(0, 256, (5, 13))
    batch = {"seen": text[:, :-1].astype(np.int32), "next": text[:, 1:].copy()}
    batch["next"][2, 4:] = NOTHING
    if pack:
        batch["segments"] = np.repeat(np.array([[1, 2, 0]], np.int32), (5, 4, 3), axis=1).repeat(5, axis=0)
        batch["positions"] = np.concatenate([np.arange(n) for n in (5, 4, 3)]).astype(np.int32)[None].repeat(5, axis=0)
    with torch.no_grad():
        first = tasks[0].measure(torch_model, {name: torch.from_numpy(array) for name, array in batch.items()})
    second = tasks[1].measure(keras_model, {name: tf.constant(array) for name, array in batch.items()})
    for name, values in first.items():
        np.testing.assert_allclose(second[name].numpy(), values.numpy(), rtol=1e-4, atol=1e-5)


def test_photos_decode_alike(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_photo_tars(tmp_path / "data")
    decoded = []
    for kind in (TorchImageNet, KerasImageNet):
        task = kind(model="cnn", side=16, classes=3, mixup=0.2)
        train = task.open_data(DataAccess(str(tmp_path / "data"), tmp_path / "cache")).train
        ids = np.arange(len(train))
        with RecordReader(train) as reader:
            decoded.append(task.decode(reader.load(ids, SampleRandom(1, 2, ids))))
    for name in ("image", "label", "target"):
        np.testing.assert_array_equal(decoded[0][name], decoded[1][name])


def mnist_batches(task: TorchMnist | KerasMnist, folder: Path) -> list[LoadedBatch]:
    train = task.open_data(DataAccess(str(folder / "data"), folder / "cache")).train
    plan = ShardPlan.for_catalog(train, global_batch=16, seed=5, epoch=0)
    with RecordReader(train) as reader, ShardLoader(plan, reader, task.decode, rank=0, size=1, augment=True) as loader:
        return list(loader)


@pytest.mark.parametrize("arguments", [{}, {"mixup": 0.4, "label_smoothing": 0.1}])
def test_both_frameworks_train_alike(tmp_path: Path, arguments: dict[str, float]) -> None:
    """Same weights, same batches, a changing learning rate, momentum and decay: the same losses, to float tolerance."""
    (tmp_path / "data").mkdir()
    write_mnist(tmp_path / "data")
    tasks = TorchMnist(weight_decay=0.01, **arguments), KerasMnist(weight_decay=0.01, **arguments)  # type: ignore[arg-type]
    in_torch, in_keras = (
        TorchAdapter(tasks[0], ONE, 1, 0.1, TrainingOptions()),
        KerasAdapter(tasks[1], ONE, 1, 0.1, TrainingOptions()),
    )
    give_to_keras(in_keras.model, torch_weights(in_torch.model))
    losses: list[list[dict[str, float]]] = []
    pairs: list[tuple[Adapter, TorchMnist | KerasMnist]] = [(in_torch, tasks[0]), (in_keras, tasks[1])]
    for adapter, task in pairs:
        losses.append([])
        for step, batch in enumerate(2 * mnist_batches(task, tmp_path)):
            adapter.train_step(batch, step, 0.01 * (step + 1))
            losses[-1].append(adapter.read_sums().values)
    for first, second in zip(*losses, strict=True):
        assert first == pytest.approx(second, rel=2e-3)
    trained = to_torch(keras_weights(in_keras.model))
    for name, array in torch_weights(in_torch.model).items():
        np.testing.assert_allclose(trained[name], array, rtol=0, atol=1e-3)


def test_keras_applications_by_name() -> None:
    model = keras_zoo.build_model("MobileNetV3Small", 10, 32)
    assert model(np.zeros((2, 32, 32, 3), np.float32), training=False).shape == (2, 10)
    assert not keras_zoo.takes_raw_pixels(model)
    with pytest.raises(UsageError, match="The model Xception takes no pictures of 32×32"):
        keras_zoo.build_model("Xception", 10, 32)


@pytest.mark.parametrize("zoo", [torch_zoo, keras_zoo])
def test_the_small_network_takes_no_single_pixel(zoo: Any) -> None:
    with pytest.raises(UsageError, match="The model cnn takes no pictures of 1×1: its pooling needs 2×2 at least"):
        zoo.build_model("cnn", 10, 1)


def test_what_torchvision_refuses_to_build_is_refused_in_our_words() -> None:
    with pytest.raises(UsageError, match="The model vit_b_16 takes no pictures of 20×20: "):
        torch_zoo.build_model("vit_b_16", 10, 20)


def test_keras_models_are_known_by_name() -> None:
    assert {"cnn", "resnet50", "ResNet50", "EfficientNetB0"} <= set(keras_zoo.model_names())
    with pytest.raises(UsageError, match="did you mean 'resnet50'"):
        KerasMnist(model="resnet5")
