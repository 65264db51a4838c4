"""The forward and backward passes of a step in torch: what adds to the gradients, and to the sums of measures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.autograd.graph import _engine_run_backward

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import MeasureTotals
from hvdtrain.adapters.forward_pass import batch_mask
from hvdtrain.adapters.step_timer import BACKWARD, FORWARD, HOST_TO_DEVICE, StepTimer
from hvdtrain.adapters.torch.device import low_precision
from hvdtrain.adapters.torch.gradient_sync import GradientSync
from hvdtrain.adapters.torch.measure_sums import BATCHES_TOGETHER, MeasureSums
from hvdtrain.adapters.torch.update import Update
from hvdtrain.adapters.torch.user_changes import require_gradients
from hvdtrain.algorithms.micro_batches import ALL_RANKS, micro_batches, mix
from hvdtrain.comm.peer_failure import peer_failures
from hvdtrain.config.training_options import Precision
from hvdtrain.task.predicting import RecordedModel, check_predictions
from hvdtrain.task.task import Task, check_measures


class TrainingMode:
    """Training and evaluation mode of a model, whatever a callback or the task's measure() has done to it.

    It is set where it changes, and where user code has changed that of a whole model. Before each pass only the flags
    of whole models are looked at: to ask all layers costs as much as a small layer. What user code does to single
    layers lasts until `begin_epoch`, or until the mode changes.

    Args: `modules`: the model; with stages its parts on this process too.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        self._mode: bool | None = None
        self._flags: list[bool] = []

    def begin_epoch(self) -> None:
        self._set_all(True)

    def set(self, training: bool) -> None:
        if training != self._mode or self._read() != self._flags:
            self._set_all(training)

    def _set_all(self, training: bool) -> None:
        for module in self._modules:
            module.train(training)
        # A model's own train() may set another flag.
        self._mode, self._flags = training, self._read()

    def _read(self) -> list[bool]:
        return [module.training for module in self._modules]


class Passes(Protocol):
    """Runs a model on batches, by its parts on this rank."""

    def train(self, batch: LoadedBatch, step: int) -> None:
        """Forward and backward: add to the gradients, and to the sums of measures."""

    def evaluate(self, batch: LoadedBatch) -> None:
        """Forward only."""

    def read_sums(self) -> list[MeasureTotals]:
        """The sums of measures since the last call, by the same names on all ranks; waits for the device. One for each
        virtual worker of this rank in order, where there are some."""


@dataclass(frozen=True)
class Draws:
    """Random numbers as a function of (seed, rank, step, micro batch), so that a resumed run draws the same ones."""

    seed: int
    rank: int
    generators: Sequence[torch.Generator]  # those that a model on its device may draw from

    @classmethod
    def on(cls, device: torch.device, seed: int, rank: int) -> "Draws":
        """Make those of a model on `device`; one on a GPU may draw on the host too."""
        if device.type == "cpu":
            return cls(seed, rank, [torch.default_generator])
        torch.cuda.init()  # type: ignore[no-untyped-call]
        return cls(seed, rank, [torch.default_generator, torch.cuda.default_generators[device.index]])

    def begin(self, step: int, micro_batch: int) -> None:
        """What follows is the pass of this micro batch."""
        self.begin_of(self.rank, step, micro_batch)

    def begin_update(self, step: int, part: int) -> None:
        """What follows is the update of this step: ranks that make the same one, of `part`, draw the same numbers."""
        self.begin_of(ALL_RANKS, step, part)

    def begin_of(self, worker: int, step: int, micro_batch: int = 0) -> None:
        """The same for a virtual worker, which has a number as ranks have."""
        for generator in self.generators:
            generator.manual_seed(mix(self.seed, worker, step, micro_batch))


@dataclass(frozen=True, slots=True)
class Rows:
    """Which rows of a micro batch count."""

    weights: torch.Tensor | None  # float32[n], 0 or 1; None where all n rows count, which spares the device some work
    real: torch.Tensor | None  # bool[n], those that count; None where all do
    count: int


class Measurement:
    """What a task measures of batches on a device, and the sums of it."""

    def __init__(
        self, task: Task, precision: Precision, device: torch.device, together: int = BATCHES_TOGETHER
    ) -> None:
        self.task, self.precision, self.device = task, precision, device
        self._sums = MeasureSums(together)
        self._equal_shares: tuple[tuple[int, float], torch.Tensor] | None = None
        self.begin, self.read = self._sums.begin, self._sums.read

    def rows(self, part: LoadedBatch) -> Rows:
        count = int(np.count_nonzero(part.weights))
        if count == len(part.weights):
            return Rows(None, None, count)
        weights = self._place(part.weights)
        return Rows(weights, weights > 0, count)

    def placed(self, features: Mapping[str, NDArray[Any]], aligned: bool = False) -> dict[str, torch.Tensor]:
        """On the device. Args: `aligned`: in memory of their own, on whose alignment kernels may depend."""
        placed = {name: self._place(array) for name, array in features.items()}
        return {name: tensor.clone() for name, tensor in placed.items()} if aligned else placed

    def measure(self, model: Any, features: Mapping[str, torch.Tensor], rows: Rows, samples: int) -> torch.Tensor:
        """The losses [n] of the samples. All measures are added to the sums, for rows that count."""
        with low_precision(self.precision, self.device), batch_mask(rows.real):
            measures = self.task.measure(model, features)
        check_measures(measures, samples, torch.is_tensor)
        self._sums.add(measures, rows.weights, rows.count)
        losses: torch.Tensor = measures["loss"]
        return losses

    def predict(self, model: Any, batch: LoadedBatch) -> dict[str, NDArray[Any]]:
        """What the task predicts of a batch, as `on_host` gives it."""
        with low_precision(self.precision, self.device), batch_mask(self.rows(batch).real):
            predictions = self.task.predict(model, self.placed(batch.features))
        return self.on_host(predictions, len(batch.ids))

    def on_host(self, predictions: Any, samples: int) -> dict[str, NDArray[Any]]:
        """What the task predicts, checked; floats of half precision become float32."""
        check_predictions(predictions, samples, type(self.task).__name__, _is_plain)
        return {name: _on_host(value) for name, value in predictions.items()}

    def shares(self, rows: Rows, losses: torch.Tensor, share: float) -> torch.Tensor:
        """Return by what each loss counts, float32[n]: `share`, or 0. It is made anew where something is different."""
        if rows.weights is not None:
            return rows.weights * share
        if self._equal_shares is None or self._equal_shares[0] != (len(losses), share):
            self._equal_shares = (len(losses), share), torch.full_like(losses, share)
        return self._equal_shares[1]

    def _place(self, array: Any) -> torch.Tensor:
        writable = array if array.flags.writeable else array.copy()  # torch warns of, and could write into, others
        tensor = torch.from_numpy(writable)
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()  # a copy from other memory would wait for the kernels before it
        return tensor if self.device.type == "cpu" else tensor.to(self.device, non_blocking=True)


def _is_plain(value: Any) -> bool:
    """Whether it is a tensor that numpy has an array for."""
    return torch.is_tensor(value) and value.layout is torch.strided and not value.is_quantized


def _on_host(tensor: torch.Tensor) -> NDArray[Any]:
    low = tensor.is_floating_point() and tensor.dtype.itemsize < 4
    array: NDArray[Any] = (tensor.float() if low else tensor).cpu().numpy()
    return array


def backward(losses: torch.Tensor, shares: torch.Tensor) -> None:
    """Add the gradients of Σ `shares`ᵢ · `losses`ᵢ to those of the parameters.

    This is what `torch.autograd.backward` calls in the end. By itself that imports SymPy, which takes a second, and
    takes 7 % longer for a step of a small MLP; `losses.dot(shares).backward()` takes 13 % longer.

    Args: `losses`: floating[n], with a graph; `shares`: of the same shape and type, without one.
    """
    _engine_run_backward((losses,), (shares,), False, False, (), allow_unreachable=True, accumulate_grad=True)


@dataclass(frozen=True)
class WholeModelPasses:
    """Implements `Passes` for a model on one device."""

    forward: Any  # what the task's measure() calls
    mode: TrainingMode  # of the model; measure() may change it, so that it is set again for each pass
    accumulate_steps: int  # micro batches of each update
    draws: Draws
    measurement: Measurement
    gradient_sync: GradientSync
    update: Update  # whose scale the losses are multiplied by
    timer: StepTimer

    def train(self, batch: LoadedBatch, step: int) -> None:
        parts = micro_batches(self.gradient_sync.weighed(batch), self.accumulate_steps)
        for number, part in enumerate(parts):
            self.mode.set(True)
            self.draws.begin(step, number)
            self._add(part, number + 1 == len(parts), self.measurement)

    def _add(self, part: LoadedBatch, last: bool, measurement: Measurement, aligned: bool = False) -> None:
        self.timer.begin()
        self.gradient_sync.set_grad_sync(last)
        with peer_failures():  # SyncBatchNorm reduces its statistics in the forward pass
            losses, shares = self.weighted_losses(part, measurement, aligned)
            self.timer.end(FORWARD)
            backward(losses, shares)
            self.timer.end(BACKWARD)

    def weighted_losses(
        self, part: LoadedBatch, measurement: Measurement, aligned: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The forward pass of a micro batch: losses float32[n], and by which each of them counts, as `backward` takes
        them."""
        rows, features = measurement.rows(part), measurement.placed(part.features, aligned)
        self.timer.end(HOST_TO_DEVICE)
        losses = measurement.measure(self.forward, features, rows, len(part.ids)).float()
        share = self.gradient_sync.loss_multiplier * self.update.scale / max(part.global_weight, 1.0)
        require_gradients(losses)
        return losses, measurement.shares(rows, losses, share)

    def evaluate(self, batch: LoadedBatch) -> None:
        self._evaluate(self.forward, batch, self.measurement)

    def evaluate_with_output(self, batch: LoadedBatch) -> dict[str, NDArray[Any]]:
        """Forward only; returns "output" [n, ...], what the task's measure() got from the model."""
        measurement, recorded = self.measurement, RecordedModel(self.forward)
        self._evaluate(recorded, batch, measurement)
        return measurement.on_host({"output": recorded.output(type(measurement.task).__name__)}, len(batch.ids))

    def _evaluate(self, model: Any, batch: LoadedBatch, measurement: Measurement, aligned: bool = False) -> None:
        self.mode.set(False)
        features, rows = measurement.placed(batch.features, aligned), measurement.rows(batch)
        measurement.measure(model, features, rows, len(batch.ids))

    def predict(self, batch: LoadedBatch) -> dict[str, NDArray[Any]]:
        self.mode.set(False)
        return self.measurement.predict(self.forward, batch)

    def read_sums(self) -> list[MeasureTotals]:
        return [self.measurement.read()]
