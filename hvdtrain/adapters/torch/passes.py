"""The forward and backward passes of a step in torch: what adds to the gradients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from data_sharding import LoadedBatch
from hvdtrain.adapters.step_timer import BACKWARD, FORWARD, HOST_TO_DEVICE, Laps
from hvdtrain.adapters.torch.gradient_sync import GradientSync
from hvdtrain.adapters.torch.light_calls import backward
from hvdtrain.adapters.torch.measure_sums import MeasureTotals
from hvdtrain.adapters.torch.measurement import Measurement
from hvdtrain.adapters.torch.training_mode import TrainingMode
from hvdtrain.adapters.torch.update import Update
from hvdtrain.adapters.torch.user_changes import require_gradients
from hvdtrain.algorithms.micro_batches import micro_batches, mix
from hvdtrain.comm.peer_failure import peer_failures


class Passes(Protocol):
    """Runs a model on batches, by its parts on this rank."""

    def train(self, batch: LoadedBatch, step: int) -> None:
        """Forward and backward: add to the gradients, and to the sums of measures."""

    def evaluate(self, batch: LoadedBatch) -> None:
        """Forward only."""

    def read_sums(self) -> MeasureTotals:
        """The sums of measures since the last call, by the same names on all ranks; waits for the device."""


@dataclass(frozen=True)
class Draws:
    """Random numbers as a function of (seed, rank, step, micro batch), so that a resumed run draws the same ones.

    Attributes:
        seed, rank: of this process.
        generators: those that a model on its device may draw from.
    """

    seed: int
    rank: int
    generators: Sequence[torch.Generator]

    @classmethod
    def on(cls, device: torch.device, seed: int, rank: int) -> "Draws":
        """Of a model on `device`; one on a GPU may draw on the host too."""
        if device.type == "cpu":
            return cls(seed, rank, [torch.default_generator])
        torch.cuda.init()  # type: ignore[no-untyped-call]
        return cls(seed, rank, [torch.default_generator, torch.cuda.default_generators[device.index]])

    def begin(self, step: int, micro_batch: int) -> None:
        """What follows is the pass of this micro batch."""
        for generator in self.generators:
            generator.manual_seed(mix(self.seed, self.rank, step, micro_batch))


@dataclass(frozen=True)
class WholeModelPasses:
    """Implements `Passes` for a model on one device.

    Attributes:
        forward: what the task's measure() calls.
        mode: of the model; measure() may change it, so that it is set again for each pass.
        accumulate_steps: micro batches of each update.
        draws: random numbers.
        measurement: the task's measures.
        gradient_sync: is told of each pass.
        update: whose scale the losses are multiplied by.
        laps: times the parts of the step.
    """

    forward: Any
    mode: TrainingMode
    accumulate_steps: int
    draws: Draws
    measurement: Measurement
    gradient_sync: GradientSync
    update: Update
    laps: Laps

    def train(self, batch: LoadedBatch, step: int) -> None:
        parts = micro_batches(batch, self.accumulate_steps)
        for number, part in enumerate(parts):
            self.mode.set(True)
            self.draws.begin(step, number)
            self._add(part, number + 1 == len(parts))

    def _add(self, part: LoadedBatch, last: bool) -> None:
        laps, measurement = self.laps, self.measurement
        laps.begin()
        rows, features = measurement.rows(part), measurement.placed(part.features)
        laps.end(HOST_TO_DEVICE)
        self.gradient_sync.set_grad_sync(last)
        with peer_failures():  # SyncBatchNorm reduces its statistics in the forward pass
            losses = measurement.measure(self.forward, features, rows, len(part.ids)).float()
            share = self.gradient_sync.loss_multiplier * self.update.scale / max(part.global_weight, 1.0)
            require_gradients(losses)
            laps.end(FORWARD)
            backward(losses, measurement.shares(rows, losses, share))
            laps.end(BACKWARD)

    def evaluate(self, batch: LoadedBatch) -> None:
        measurement = self.measurement
        self.mode.set(False)
        measurement.measure(self.forward, measurement.placed(batch.features), measurement.rows(batch), len(batch.ids))

    def read_sums(self) -> MeasureTotals:
        return self.measurement.read()
