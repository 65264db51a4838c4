"""What every arm trains: ten parameters, so that hardly anything but the loop around a step takes time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from data_sharding import RecordBatch

FEATURES = 9
BATCH = 8
WARM_UP = 2_000
STEPS = 20_000
LR = 0.01


def records() -> NDArray[np.float32]:
    """One row a record, [WARM_UP + STEPS batches, FEATURES + 1]: features, and the target, which is their sum."""
    x = np.random.default_rng(0).normal(size=((WARM_UP + STEPS) * BATCH, FEATURES)).astype(np.float32)
    return np.hstack([x, x.sum(1, keepdims=True)])


def decode(batch: RecordBatch) -> dict[str, NDArray[Any]]:
    """Rows of a file as the arrays "x" and "y"."""
    table = np.frombuffer(b"".join(batch), np.float32).reshape(len(batch), FEATURES + 1)
    return {"x": table[:, :FEATURES].copy(), "y": table[:, FEATURES].copy()}


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    """Features [records, FEATURES] and targets [records]."""
    table = torch.from_numpy(records())
    return table[:, :FEATURES].contiguous(), table[:, FEATURES].contiguous()


def model() -> nn.Module:
    """The same weights in every arm."""
    torch.manual_seed(0)
    return nn.Linear(FEATURES, 1)


def optimizer_of(network: nn.Module) -> torch.optim.Optimizer:
    """Plain SGD."""
    return torch.optim.SGD(network.parameters(), lr=LR)


class Clock:
    """Seconds a step, from the end of the warm-up to the end of the last step."""

    def __init__(self) -> None:
        self._done = 0
        self._begin = 0.0

    def step(self) -> None:
        """A step has ended. At the last one, print the result."""
        self._done += 1
        if self._done == WARM_UP:
            self._begin = time.perf_counter()
        if self._done == WARM_UP + STEPS:
            print(json.dumps({"seconds_per_step": (time.perf_counter() - self._begin) / STEPS}), flush=True)


def timed(batches: Iterable[Any], clock: Clock) -> Iterator[Any]:
    """The batches; a step ends when the next batch is asked for."""
    for batch in batches:
        yield batch
        clock.step()
