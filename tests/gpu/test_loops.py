"""Loops of one's own, of one rank: gradients are reduced on the GPU, and a checkpoint brings tensors back to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import run_python
from support.gpu import visible

BEGIN = """
import sys
import torch
from torch import nn
import hvdtrain.torch as hvd

hvd.init()
device = torch.device("cuda", hvd.local_rank())

def model():
    torch.manual_seed(1)  # of gradients above and below 1 MiB
    layers = nn.Linear(16, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU(), nn.Linear(700, 4)
    return nn.Sequential(*layers).to(device, torch.bfloat16 if "bfloat16" in sys.argv else torch.float32)

def train(net, optimizer):
    for step in range(20):
        torch.manual_seed(step)
        rows = torch.randn(8, 16).to(device, next(net.parameters()).dtype)
        optimizer.zero_grad()
        net(rows).square().mean().backward()
        optimizer.step()

def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

alone = model()
train(alone, sgd(alone))
"""

LOOKALIKES = f"""
{BEGIN}
wrapped = model()
train(wrapped, hvd.DistributedOptimizer(sgd(wrapped), named_parameters=wrapped.named_parameters()))
parallel = hvd.DistributedDataParallel(model(), device_ids=[device.index])
train(parallel, sgd(parallel))
for other in (wrapped, parallel.module):
    for one, given in zip(alone.parameters(), other.parameters(), strict=True):
        assert given.device.type == device.type
        torch.testing.assert_close(given, one)
"""

CHECKPOINT = f"""
{BEGIN}
optimizer = sgd(alone)
train(alone, optimizer)
saving = hvd.Checkpoint("kept", model=alone, optimizer=optimizer)
saving.save(20)
saving.wait()
net = model()
other = sgd(net)
assert hvd.Checkpoint("kept", model=net, optimizer=other).restore().step == 20
train(alone, optimizer)
train(net, other)
for one, given in zip(alone.parameters(), net.parameters(), strict=True):
    assert given.device.type == device.type and torch.equal(given, one)
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_wrapped_optimizers_and_models_train_as_torch_alone_does(dtype: str, tmp_path: Path) -> None:
    ended = run_python(["-c", LOOKALIKES, dtype], tmp_path, visible())
    assert ended.code == 0, ended


def test_a_loop_goes_on_from_its_checkpoint_on_the_gpu(tmp_path: Path) -> None:
    ended = run_python(["-c", CHECKPOINT], tmp_path, visible())
    assert ended.code == 0, ended
