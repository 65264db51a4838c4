"""torchvision beside whatever PyTorch is installed: models, transforms, data sets, and an honest failure of its ops."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from data_sharding import write_shards
from data_sharding.example import encode
from hvdtrain.models.torchvision_import import extension_loads, import_torchvision


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
    plain_finders = "sys.meta_path[:] = [f for f in sys.meta_path if f.__module__ != 'hvdtrain_start_up']"  # see set-up
    script = f"import sys; {plain_finders}; import torchvision"
    plain = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120, check=False)
    assert (plain.returncode == 0) == extension_loads()


TASK = """
import torchvision
from torchvision.transforms import v2

import hvdtrain
import numpy as np
import torch
from data_sharding.example import decode


class Numbers(hvdtrain.Task):
    framework = "torch"
    needs_data_dir = True

    def open_data(self, data):
        return hvdtrain.Splits(train=data.catalog("train-*.tfrecord"), validation=None)

    def decode(self, records):
        return {"x": np.stack([decode(record)["x"] for record in records])}

    def build_model(self):
        return torch.nn.Linear(3, 1)

    def build_optimizer(self, model, lr):
        return torch.optim.SGD(model.parameters(), lr=lr)

    def measure(self, model, batch):
        return {"loss": model(v2.functional.horizontal_flip(batch["x"])).square().mean(1)}
"""


def test_a_task_imports_torchvision_in_workers_and_in_decode_processes(tmp_path: Path) -> None:
    (tmp_path / "numbers_task.py").write_text(TASK, encoding="utf-8")
    write_shards(tmp_path, "train", [encode({"x": np.full(3, i, np.float32)}) for i in range(64)], num_shards=1)
    flags = ["--data.dir", ".", "--data.processes", "1", "--global-batch-size", "16", "--max-steps", "2"]
    command = [sys.executable, "-m", "hvdtrain", "--task", "numbers_task:Numbers", *flags]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr


def test_nobody_who_only_looks_for_torchvision_imports_torch() -> None:
    code = (
        "import sys, importlib.util, hvdtrain.models.torchvision_import; importlib.util.find_spec('torchvision');"
        "print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout == "False\n"


LATE_COMPILER = """
import sys
import hvdtrain.models.torchvision_import as late, torch
torchvision = late.import_torchvision()
before = late._COMPILER in sys.modules
region = torch.tensor([[0.0, 0.0, 3.0, 3.0]])
pooled = torchvision.ops.roi_align(torch.ones(1, 1, 4, 4), [region], 1)
compiled = torch.compile(torchvision.models.resnet18().eval(), backend="eager")(torch.zeros(1, 3, 32, 32))
print(before, pooled.item(), tuple(compiled.shape))
"""

USED_MEANWHILE = """
import sys
import hvdtrain.models.torchvision_import as late
with late._compiler_imported_later():
    from torch._dynamo.utils import counters, is_compile_supported
import torch._dynamo.utils as real
print(sys.modules[late._COMPILER] is real, counters is real.counters, is_compile_supported('cpu'))
"""


@pytest.mark.parametrize(
    ("script", "says"), [(LATE_COMPILER, "False 1.0 (1, 1000)"), (USED_MEANWHILE, "True True True")]
)
def test_torchvision_comes_without_the_compiler_which_is_imported_when_it_is_used(script: str, says: str) -> None:
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False)
    assert run.stdout == f"{says}\n", run.stderr
