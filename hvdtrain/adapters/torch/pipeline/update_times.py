"""What an optimizer takes for some of a model's weights, where its state for all of them may not fit."""

import bisect
import itertools
import time
from typing import Final

import torch

from hvdtrain.adapters.torch.build import build_model
from hvdtrain.adapters.torch.device import own_device
from hvdtrain.adapters.torch.optimizers import optimizer_of
from hvdtrain.adapters.torch.state import require_own_parameters
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.task.task import Task

_BYTES: Final = 8 * 2**20
_REPEATS: Final = 3  # after a first step, which makes the state; the fastest counts


def update_times(task: Task, options: TrainingOptions, lr: float) -> tuple[float, float]:
    """Measure, for each byte of weights, seconds of an update and bytes of the optimizer's state.

    Only some of the weights are updated, and they keep their values, so that little memory is needed.
    """
    device = own_device()
    model = build_model(task, options, torch.device("cpu"))  # whole, it may not fit on a device
    optimizer = optimizer_of(task, model, lr, options)
    require_own_parameters(model, optimizer)
    for group in optimizer.param_groups:
        group["lr"] = 0.0  # a task may build one model only: its weights stay
    chosen = _some_of([p for group in optimizer.param_groups for p in group["params"] if p.requires_grad])
    for parameter in chosen:
        parameter.data = parameter.data.to(device)
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    seconds = min(_timed(optimizer, device) for _ in range(_REPEATS))
    nbytes = sum(p.nbytes for p in chosen)
    slots = [slot for key, of in optimizer.state.items() if torch.is_tensor(key) for slot in of.values()]
    kept = sum(slot.nbytes for slot in slots if torch.is_tensor(slot))
    for parameter in chosen:
        parameter.grad, parameter.data = None, parameter.data.cpu()
    return seconds / nbytes, kept / nbytes


def _some_of(parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """Some that are like most of the weights, `_BYTES` of them or more: half of all bytes are in larger ones."""
    by_size = sorted(parameters, key=lambda p: p.nbytes)
    up_to = list(itertools.accumulate(p.nbytes for p in by_size))
    typical = bisect.bisect_left(up_to, up_to[-1] / 2)
    largest_first = by_size[typical::-1]
    sums = itertools.accumulate((p.nbytes for p in largest_first), initial=0)
    return [p for p, before in zip(largest_first, sums, strict=False) if before < _BYTES]


def _timed(optimizer: torch.optim.Optimizer, device: torch.device) -> float:
    begin = time.perf_counter()
    optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin
