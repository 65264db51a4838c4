"""torchvision beside whatever PyTorch is installed: models, transforms, data sets, and an honest failure of its ops."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import torch

from hvdtrain.adapters.torchvision_import import extension_loads, import_torchvision


def test_resnet18_runs_forward_and_backward() -> None:
    torchvision = import_torchvision()
    model = torchvision.models.resnet18(num_classes=10)
    model(torch.zeros(2, 3, 32, 32)).sum().backward()
    assert model.fc.weight.grad.shape == (10, 512)


def test_transforms_work_on_tensors() -> None:
    import_torchvision()
    transforms = importlib.import_module("torchvision.transforms.v2")
    image = torch.arange(48, dtype=torch.uint8).reshape(3, 4, 4)
    flipped = transforms.functional.horizontal_flip(image)
    assert torch.equal(flipped, image.flip(-1))


def test_datasets_can_be_imported_and_read() -> None:
    import_torchvision()
    datasets = importlib.import_module("torchvision.datasets")
    image, label = datasets.FakeData(size=3, image_size=(3, 8, 8), num_classes=5)[2]
    assert image.size == (8, 8)
    assert 0 <= label < 5


def test_calling_twice_returns_the_same_module() -> None:
    assert import_torchvision() is import_torchvision()


def test_a_missing_operator_fails_loudly_when_it_is_called() -> None:
    torchvision = import_torchvision()
    boxes, scores = torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.tensor([1.0])
    if extension_loads():
        assert torchvision.ops.nms(boxes, scores, 0.5).tolist() == [0]
    else:
        with pytest.raises(RuntimeError, match="custom C\\+\\+ ops"):
            torchvision.ops.nms(boxes, scores, 0.5)


def test_the_plain_import_fails_exactly_where_the_extension_does_not_load() -> None:
    """If torchvision one day imports without help beside a CPU build, this module has become superfluous."""
    plain = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True, timeout=120, check=False)
    assert (plain.returncode == 0) == extension_loads()
