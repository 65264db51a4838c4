"""The passes of a step where this process has a stage of the model, or all stages on several devices."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import nn

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import MeasureTotals
from hvdtrain.adapters.forward_pass import batch_mask
from hvdtrain.adapters.step_timer import ALLREDUCE, BACKWARD, FORWARD, HOST_TO_DEVICE, StepTimer
from hvdtrain.adapters.torch.device import low_precision
from hvdtrain.adapters.torch.gradient_sync import GradientSync
from hvdtrain.adapters.torch.passes import Draws, Measurement, Rows, backward
from hvdtrain.adapters.torch.pipeline.split_call import GivenOutput, captured_input
from hvdtrain.adapters.torch.pipeline.stage_boundaries import Link
from hvdtrain.adapters.torch.update import Update
from hvdtrain.adapters.torch.user_changes import require_gradients
from hvdtrain.algorithms.micro_batches import micro_batches
from hvdtrain.algorithms.pipeline_schedule import Pass


class _Held(NamedTuple):
    """What a forward pass leaves for its backward pass: what came in and went out (or the losses), which rows count."""

    entering: torch.Tensor
    leaving: torch.Tensor
    rows: Rows


@dataclass(frozen=True)
class Stage:
    """A stage on this process."""

    module: nn.Module
    draws: Draws  # random numbers of this stage's layers
    measuring: Draws  # random numbers of the task's measure(), the same in the first stage as in the last one
    measurement: Measurement  # whose task's measure() begins the first stage and ends the last one
    before: Link | None  # leads to the stage before; None: this is the first one
    after: Link | None  # leads to the next stage; None: this is the last one
    timer: StepTimer
    _held: dict[int, _Held] = field(default_factory=dict)

    def forward(self, part: LoadedBatch, number: int, step: int | None, timer: StepTimer) -> None:
        """Run micro batch `number` of update `step`; None: of an evaluation, of which nothing is kept."""
        timer.begin()
        rows = self.measurement.rows(part)
        entering = self._entering(part, number, step, timer)
        if step is not None:
            self.draws.begin(step, number)
        with self._low_precision(), batch_mask(rows.real):
            leaving = self.module(entering if step is None else entering.clone())  # which layers may work on in place
        if self.after is None:
            features = self.measurement.placed(part.features)
            if step is not None:
                self.measuring.begin(step, number)
            leaving = self.measurement.measure(GivenOutput(leaving), features, rows, len(part.ids)).float()
        else:
            self.after.send(leaving.detach())
        if step is not None:
            self._held[number] = _Held(entering, leaving, rows)
        timer.end(FORWARD)

    def _entering(self, part: LoadedBatch, number: int, step: int | None, timer: StepTimer) -> torch.Tensor:
        if self.before is None:
            features = self.measurement.placed(part.features)
            timer.end(HOST_TO_DEVICE)
            if step is not None:
                self.measuring.begin(step, number)
            with self._low_precision():
                return captured_input(self.measurement.task, features, self.module)
        entering = self.before.receive()
        timer.end(ALLREDUCE)
        return entering.requires_grad_(step is not None)

    def _low_precision(self) -> AbstractContextManager[object]:
        return low_precision(self.measurement.precision, self.measurement.device)

    def backward(self, number: int, share: float) -> None:
        """Run micro batch `number` backward; each loss counts by `share`."""
        self.timer.begin()
        held = self._held.pop(number)
        if self.after is None:
            losses = held.leaving
            require_gradients(losses)
            backward(losses, self.measurement.shares(held.rows, losses, share))
        else:
            gradient = self.after.receive()
            self.timer.end(ALLREDUCE)
            if held.leaving.requires_grad:
                torch.autograd.backward(held.leaving, gradient)
        if self.before is not None:
            before = held.entering.grad
            self.before.send(torch.zeros_like(held.entering) if before is None else before)
        self.timer.end(BACKWARD)


Order = Callable[[int], Iterable[tuple[int, Pass]]]
"""Micro batches → (place in the list of stages of this process, pass), in the order in which they are run."""


@dataclass(frozen=True)
class PipelinePasses:
    """Implements `Passes`."""

    stages: Sequence[Stage]
    order: Order
    count: int  # micro batches of each full step
    gradient_sync: GradientSync
    update: Update  # whose scale the losses are multiplied by
    # of the measures on all ranks, given those on this one; collective. None: they are this process's.
    known_names: Callable[[Sequence[str]], Sequence[str]] | None = None
    _untold: StepTimer = field(default_factory=StepTimer)  # of evaluations, whose time belongs to no step

    def train(self, batch: LoadedBatch, step: int) -> None:
        parts = micro_batches(batch, max(1, min(self.count, len(batch.ids))))
        share = self.gradient_sync.loss_multiplier * self.update.scale / max(batch.global_weight, 1.0)
        for place, stage_pass in self.order(len(parts)):
            stage, part = self.stages[place], parts[stage_pass.micro_batch]
            if stage_pass.is_forward:
                stage.forward(part, stage_pass.micro_batch, step, stage.timer)
            else:
                self.gradient_sync.set_grad_sync(stage_pass.micro_batch == len(parts) - 1)
                stage.backward(stage_pass.micro_batch, share)

    def evaluate(self, batch: LoadedBatch) -> None:
        for number, part in enumerate(micro_batches(batch, max(1, min(self.count, len(batch.ids))))):
            for stage in self.stages:
                stage.forward(part, number, None, self._untold)

    def read_sums(self) -> list[MeasureTotals]:
        totals = self.stages[-1].measurement.read()
        if self.known_names is None:
            return [totals]
        names = self.known_names(list(totals.values))
        return [MeasureTotals(*({name: of_name.get(name, 0.0) for name in names} for of_name in totals))]
