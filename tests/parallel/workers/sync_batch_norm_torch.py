"""`sync_batch_norm_torch.py FOLDER CASES`: each rank trains on its part of a batch, then rank 0 on all of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch
from torch import nn

from hvdtrain.adapters.forward_pass import batch_mask
from hvdtrain.adapters.torch.activation_checkpointing import checkpoint_activations
from hvdtrain.adapters.torch.sync_batch_norm import convert_sync_batch_norm, horovod_sum

STEPS = 2
ROWS = {1: [7], 2: [6, 1], 3: [4, 1, 2]}
REAL = torch.tensor([True, True, False, True, True, True, True])


def layers() -> nn.Module:
    deep = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
    flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5, affine=False), nn.Linear(5, 3))
    return nn.Sequential(deep, flat)


class Block(nn.Module):
    """As in a ResNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        features = self.bn1(self.conv1(inputs)).relu()
        outputs: torch.Tensor = (inputs + self.bn2(self.conv2(features))).relu()
        return outputs


def residual() -> nn.Module:
    """A small ResNet; float64 shows an error that many layers would make larger."""
    stem = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3)]
    return nn.Sequential(*stem, nn.Sequential(*(Block(16) for _ in range(4))), *head)


CASES: dict[str, tuple[Callable[[], nn.Module], torch.dtype]] = {
    "layers": (layers, torch.float32),
    "residual": (residual, torch.float64),
}


def train(model: nn.Module, rows: slice, alone: bool) -> dict[str, Any]:
    """Some steps of SGD; the loss is the mean over all real records, gradients are summed over ranks."""
    dtype = next(model.parameters()).dtype
    x = torch.randn(7, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to(dtype)[rows]
    x = x.to(memory_format=torch.channels_last).requires_grad_()
    real = REAL[rows]
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(STEPS):
        optimizer.zero_grad()
        x.grad = None
        with batch_mask(None if real.all() else real):
            losses = model(x).square().mean(1)
        (losses * real / REAL.sum()).sum().backward()
        if not alone:
            for name, parameter in model.named_parameters():
                hvd.allreduce_(parameter.grad, name=f"gradient.{name}", op=hvd.Sum)
        optimizer.step()
    gradients = {f"gradient.{name}": p.grad for name, p in model.named_parameters()}
    return {"losses": losses.detach(), "to_inputs": x.grad, **gradients, **model.state_dict()}


def build(case: str) -> nn.Module:
    make, dtype = CASES[case]
    torch.manual_seed(0)
    return make().to(dtype)


def main(folder: Path, cases: list[str]) -> None:
    torch.set_num_threads(1)
    hvd.init()
    rank, sizes = hvd.rank(), ROWS[hvd.size()]
    first = sum(sizes[:rank])
    arrays: dict[str, Any] = {"first": torch.tensor(first), "rows": torch.tensor(sizes[rank])}
    for case in cases:
        model = convert_sync_batch_norm(build(case), horovod_sum)
        if case == "residual":
            checkpoint_activations(model)
        found = train(model, slice(first, first + sizes[rank]), alone=False)
        arrays |= {f"{case}/found/{name}": value for name, value in found.items()}
    hvd.shutdown()
    for case in cases if rank == 0 else []:
        expected = train(convert_sync_batch_norm(build(case), None), slice(None), alone=True)
        arrays |= {f"{case}/expected/{name}": value for name, value in expected.items()}
    np.savez(folder / f"rank_{rank}.npz", **{name: value.numpy() for name, value in arrays.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
