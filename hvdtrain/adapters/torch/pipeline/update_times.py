"""What an optimizer takes for some of a model's weights, where its state for all of them may not fit."""

import time
from collections.abc import Iterator
from typing import Final

import torch
from torch import nn

from hvdtrain.adapters.torch.build import build_model
from hvdtrain.adapters.torch.device import own_device
from hvdtrain.adapters.torch.optimizers import optimizer_of
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.task.interface import Task

_BYTES: Final = 8 * 2**20
_REPEATS: Final = 3  # after a first step, which makes the state; the fastest counts


def update_times(task: Task, options: TrainingOptions, lr: float) -> tuple[float, float]:
    """See `adapters.open.time_update`."""
    device = own_device()
    model = build_model(task, options, torch.device("cpu"))  # whole, it may not fit on a device
    optimizer = optimizer_of(task, model, lr, options)
    for group in optimizer.param_groups:
        group["lr"] = 0.0  # a task may build one model only: its weights stay
    chosen = list(_some_of(model))
    for parameter in chosen:
        parameter.data = parameter.data.to(device)
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    seconds = min(_timed(optimizer, device) for _ in range(_REPEATS))
    nbytes = sum(p.nbytes for p in chosen)
    kept = sum(value.nbytes for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value))
    for parameter in chosen:
        parameter.grad, parameter.data = None, parameter.data.cpu()
    return seconds / nbytes, kept / nbytes


def _some_of(model: nn.Module) -> Iterator[nn.Parameter]:
    """The largest ones that together have `_BYTES` at most, or the smallest one."""
    by_size = sorted((p for p in model.parameters() if p.requires_grad), key=lambda p: p.nbytes)
    left = max(_BYTES, by_size[0].nbytes)
    for parameter in reversed(by_size):
        if parameter.nbytes <= left:
            left -= parameter.nbytes
            yield parameter


def _timed(optimizer: torch.optim.Optimizer, device: torch.device) -> float:
    begin = time.perf_counter()
    optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin
