"""`sync_batch_norm_torch.py FOLDER CASES`: each rank trains on its part of a batch, and alone on all; writes both."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch
from torch import nn

from hvdtrain.adapters.torch.activation_checkpointing import checkpoint_activations
from hvdtrain.adapters.torch.batch_mask import batch_mask
from hvdtrain.adapters.torch.sync_batch_norm import convert_sync_batch_norm, horovod_sum
from hvdtrain.models.torch.zoo import build_model

STEPS = 2
ROWS = {1: [7], 2: [6, 1], 3: [4, 1, 2]}
REAL = torch.tensor([True, True, False, True, True, True, True])


def layers() -> nn.Module:
    deep = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
    flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5, affine=False), nn.Linear(5, 3))
    return nn.Sequential(deep, flat)


CASES: dict[str, tuple[Callable[[], nn.Module], torch.dtype]] = {
    "layers": (layers, torch.float32),
    "resnet18": (lambda: build_model("resnet18", 3, 8), torch.float64),
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


def run(make: Callable[[], nn.Module], dtype: torch.dtype) -> tuple[dict[str, Any], dict[str, Any]]:
    torch.manual_seed(0)
    whole = make().to(dtype)
    torch.manual_seed(0)
    part = convert_sync_batch_norm(make().to(dtype), horovod_sum)
    if make is not layers:
        checkpoint_activations(part)
    sizes = ROWS[hvd.size()]
    first = sum(sizes[: hvd.rank()])
    own = slice(first, first + sizes[hvd.rank()])
    convert_sync_batch_norm(whole, None)
    expected = train(whole, slice(None), alone=True)
    for name in ("losses", "to_inputs"):
        expected[name] = expected[name][own]
    return train(part, own, alone=False), expected


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    hvd.init()
    arrays = {}
    for case in sys.argv[2:]:
        make, dtype = CASES[case]
        found, expected = run(make, dtype)
        for kind, values in (("found", found), ("expected", expected)):
            arrays |= {f"{case}/{kind}/{name}": value.numpy() for name, value in values.items()}
    np.savez(folder / f"rank_{hvd.rank()}.npz", **arrays)
    hvd.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
