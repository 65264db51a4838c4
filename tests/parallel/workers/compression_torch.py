"""`compression_torch.py FOLDER`: see compression_checks.py."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import compression_checks as checks
import numpy as np
import torch
from torch import nn

from hvdtrain.adapters.torch.build import open_gradient_sync
from hvdtrain.adapters.torch.update import Update
from hvdtrain.algorithms.loss_scale import LossScale
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.topology import Topology


class Exchanging:
    """The loss is the product of parameters and constants, so that these are its gradients."""

    def __init__(self, topology: Topology, options: TrainingOptions) -> None:
        self.model = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in checks.SHAPES])
        self._optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.exchange = open_gradient_sync(self.model, self._optimizer, topology, options)

    def update(self, parts: Sequence[checks.Arrays]) -> checks.Arrays:
        for number, part in enumerate(parts):
            products = [(p * torch.from_numpy(g)).sum() for p, g in zip(self.model, part, strict=True)]
            self.exchange.set_grad_sync(number + 1 == len(parts))
            (torch.stack(products).sum() * self.exchange.loss_multiplier).backward()
        self.exchange.finish()
        found = [np.zeros(p.shape, np.float32) if p.grad is None else p.grad.clone().numpy() for p in self.model]
        self.exchange.after_update(0)
        self.exchange.clear()
        return found

    def scaled_update(self, gradients: checks.Arrays) -> checks.Arrays:
        reduced = self.update([gradients])
        for parameter, gradient in zip(self.model, reduced, strict=True):
            parameter.grad = torch.from_numpy(gradient)
        changed = Update(self._optimizer, list(self.model), loss_scale=LossScale()).step()
        return [np.array(changed), *(p.detach().numpy() for p in self.model)]


def freezing(ran: checks.Checks) -> None:
    """Updates of PowerSGD, in some of which the first matrix is frozen."""
    exchanging: Any = ran.exchanging(compression="powersgd", powersgd_rank=2)
    for step in range(checks.STEPS_BEFORE + checks.STEPS_AFTER):
        exchanging.model[0].requires_grad_(step not in checks.FROZEN_STEPS)
        ran.step("powersgd-frozen", step, exchanging)


if __name__ == "__main__":
    checks.run("torch", Path(sys.argv[1]), Exchanging, freezing)
