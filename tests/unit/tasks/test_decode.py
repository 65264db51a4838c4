"""What a picture task makes of records: the file's own pixels in validation, the same draws at every world size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from picture_files import write_cifar10_python
from torch.nn import functional

from data_sharding import Catalog, RecordReader, ShardLoader, ShardPlan
from data_sharding.formats.cifar10 import Cifar10Format
from hvdtrain.task.data_access import DataAccess
from hvdtrain.tasks.pictures.mixup import mix_pictures, mix_targets, smoothed_targets
from hvdtrain.tasks.torch import TorchCifar10, TorchMnist, TorchPictures

Rows = dict[int, dict[str, NDArray[Any]]]


def opened(task: TorchPictures, folder: Path, cache: Path) -> tuple[Catalog, Catalog]:
    splits = task.open_data(DataAccess(str(folder), cache))
    assert splits.validation is not None
    return splits.train, splits.validation


def decoded(task: TorchPictures, catalog: Catalog, size: int, epoch: int, training: bool = True) -> Rows:
    """Features by record, as `size` ranks load an epoch."""
    rows: Rows = {}
    plan = ShardPlan.for_catalog(catalog, global_batch=7, seed=5, epoch=epoch)
    with RecordReader(catalog) as reader:
        for rank in range(size):
            with ShardLoader(plan, reader, task.decode, rank=rank, size=size, augment=training) as loader:
                for batch in loader:
                    for row, record in enumerate(batch.ids.tolist()):
                        rows[record] = {name: array[row] for name, array in batch.features.items()}
    assert sorted(rows) == list(range(len(catalog)))
    return rows


def same(one: Rows, other: Rows) -> bool:
    return all(np.array_equal(one[record][name], other[record][name]) for record in one for name in one[record])


def test_validation_sees_the_files_own_pixels(cifar10: Path, tmp_path: Path) -> None:
    task = TorchCifar10(model="cnn", mixup=0.4, label_smoothing=0.1)
    _, validation = opened(task, cifar10, tmp_path)
    rows = decoded(task, validation, 1, 0, training=False)
    raw = np.frombuffer((cifar10 / "test_batch.bin").read_bytes(), np.uint8).reshape(-1, 3073)
    assert set(rows[0]) == {"image", "label"}
    named = task.open_set(DataAccess(str(cifar10), tmp_path), "test_batch*")
    assert same(rows, decoded(task, named, 1, 0, training=False))
    for record, row in rows.items():
        assert row["label"] == raw[record, 0]
        np.testing.assert_array_equal(row["image"], raw[record, 1:].reshape(3, 32, 32).transpose(1, 2, 0))


def test_both_versions_of_cifar_are_found(cifar10: Path, tmp_path: Path) -> None:
    task = TorchCifar10(model="cnn")
    binary = decoded(task, opened(task, cifar10, tmp_path / "cache")[1], 1, 0, training=False)
    other = TorchCifar10(model="cnn")
    folder = write_cifar10_python(tmp_path / "data")
    assert same(binary, decoded(other, opened(other, folder, tmp_path / "cache")[1], 1, 0, training=False))


def test_mnist_is_framed_to_32_by_32_in_three_equal_channels(mnist: Path, tmp_path: Path) -> None:
    task = TorchMnist()
    _, validation = opened(task, mnist, tmp_path)
    rows = decoded(task, validation, 1, 0, training=False)
    named = task.open_set(DataAccess(str(mnist), tmp_path), "MNIST/raw/t10k-images*")
    assert same(rows, decoded(task, named, 1, 0, training=False))
    raw = np.frombuffer((mnist / "MNIST/raw/t10k-images-idx3-ubyte").read_bytes()[16:], np.uint8).reshape(-1, 28, 28)
    for record, row in rows.items():
        assert row["image"].shape == (32, 32, 3)
        for channel in range(3):
            np.testing.assert_array_equal(row["image"][2:30, 2:30, channel], raw[record])
        assert row["image"].sum() == 3 * int(raw[record].sum())  # the frame is black


@pytest.mark.parametrize("arguments", [{}, {"mixup": 0.4, "label_smoothing": 0.1}])
def test_a_record_is_augmented_and_mixed_alike_at_every_world_size(
    cifar10: Path, tmp_path: Path, arguments: dict[str, float]
) -> None:
    task = TorchCifar10(model="cnn", **arguments)  # type: ignore[arg-type]
    train, _ = opened(task, cifar10, tmp_path)
    first = decoded(task, train, 1, 0)
    assert same(first, decoded(task, train, 2, 0))
    assert same(first, decoded(task, train, 3, 0))
    assert not same(first, decoded(task, train, 1, 1))
    assert first[0]["image"].dtype == np.uint8


def test_a_mixed_picture_is_two_records_and_so_is_its_target(cifar10: Path, tmp_path: Path) -> None:
    """Each mixed target names the record's own class with half or more, and at most one other."""
    plain, mixed = TorchCifar10(model="cnn"), TorchCifar10(model="cnn", mixup=1.0)
    catalog, _ = opened(plain, cifar10, tmp_path)
    opened(mixed, cifar10, tmp_path)
    alone, pairs = decoded(plain, catalog, 1, 0), decoded(mixed, catalog, 1, 0)
    shares = []
    for record, row in pairs.items():
        target = row["target"]
        assert target.sum() == pytest.approx(1)
        assert target[row["label"]] >= 0.5
        assert (target > 0).sum() <= 2
        own = float(target[row["label"]])
        shares.append(own)
        matches = [
            np.abs(own * alone[record]["image"] + (1 - own) * other["image"] - row["image"]).max() <= 0.51
            for other in alone.values()
            if (other["label"] == row["label"]) == (own == 1.0) and (own == 1.0 or target[other["label"]] > 0)
        ]
        assert own == 1.0 or any(matches), record
    assert len(set(shares)) > 10


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_smoothing_is_torch_s(smoothing: float) -> None:
    random = np.random.default_rng(0)
    logits, labels = torch.from_numpy(random.normal(0, 3, (8, 5))), random.integers(0, 5, 8)
    expected = functional.cross_entropy(logits, torch.from_numpy(labels), label_smoothing=smoothing, reduction="none")
    targets = torch.from_numpy(smoothed_targets(labels, 5, smoothing)).double()
    torch.testing.assert_close(functional.cross_entropy(logits, targets, reduction="none"), expected, rtol=1e-6, atol=0)


def test_mixing_rounds_to_the_nearest_and_reaches_both_ends() -> None:
    own, other = (np.random.default_rng(seed).integers(0, 256, (257, 4, 4, 3), np.uint8) for seed in (1, 2))
    share = np.arange(257, dtype=np.uint16)
    exact = (own.astype(np.float64) * share[:, None, None, None] + other * (256.0 - share[:, None, None, None])) / 256
    mixed = mix_pictures(own, other, share)
    assert np.abs(mixed - exact).max() <= 0.5
    np.testing.assert_array_equal(mixed[256], own[256])
    np.testing.assert_array_equal(mixed[0], other[0])
    targets = mix_targets(
        np.eye(3, dtype=np.float32)[:2], np.eye(3, dtype=np.float32)[1:], np.array([64, 256], np.uint16)
    )
    np.testing.assert_array_equal(targets, [[0.25, 0.75, 0], [0, 1, 0]])


class Seeing(torch.nn.Module):
    """Keeps what it is given, and returns the same logits each time."""

    seen: torch.Tensor

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self._logits = logits

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        self.seen = pictures
        return self._logits


def test_top5_is_topk_s() -> None:
    task = TorchCifar10(model="cnn")
    logits, labels = torch.randn(200, 10, generator=torch.manual_seed(0)), torch.arange(200) % 10
    batch = {"image": torch.zeros(200, 32, 32, 3, dtype=torch.uint8), "label": labels}
    measures = task.measure(Seeing(logits), batch)
    top = logits.topk(5).indices == labels[:, None]
    torch.testing.assert_close(measures["top5"], top.any(1).float())
    torch.testing.assert_close(measures["accuracy"], top[:, 0].float())


def test_pixels_are_normalized_as_torchvision_does(cifar10: Path, tmp_path: Path) -> None:
    task = TorchCifar10(model="cnn")
    opened(task, cifar10, tmp_path)
    batch = {"image": torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8), "label": torch.tensor([0, 1])}
    model = Seeing(torch.zeros(2, 10))
    task.measure(model, batch)
    from hvdtrain.models.torchvision_import import import_torchvision

    import_torchvision()
    from torchvision.transforms import functional as transforms

    tensor = batch["image"].permute(0, 3, 1, 2).float() / 255
    torch.testing.assert_close(model.seen, transforms.normalize(tensor, list(task.mean), list(task.std)))


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_pictures_come_in_the_order_of_the_filters(order: torch.memory_format) -> None:
    model = Seeing(torch.zeros(2, 10))
    model.add_module("first", torch.nn.Conv2d(3, 4, 3))
    model.to(memory_format=order)  # type: ignore[call-overload]
    batch = {"image": torch.zeros(2, 8, 8, 3, dtype=torch.uint8), "label": torch.tensor([0, 1])}
    TorchCifar10(model="cnn").measure(model, batch)
    assert model.seen.is_contiguous(memory_format=order)


def test_the_catalogs_are_train_and_test(cifar10: Path, tmp_path: Path) -> None:
    train, validation = opened(TorchCifar10(model="cnn"), cifar10, tmp_path)
    assert (len(train), len(validation)) == (80, 20)
    assert (train.format, validation.format) == (Cifar10Format(), Cifar10Format(split="test"))
