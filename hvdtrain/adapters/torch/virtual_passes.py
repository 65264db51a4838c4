"""The passes of virtual workers in torch: one after the other, each with its own records, draws and buffers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import MeasureTotals, totals_of
from hvdtrain.adapters.gathered_state import Arrays
from hvdtrain.adapters.torch.passes import Measurement, WholeModelPasses
from hvdtrain.adapters.torch.state_checks import save_all_buffers, unsaved_buffers
from hvdtrain.adapters.torch.tensor_arrays import known_to_numpy, to_array
from hvdtrain.adapters.worker_states import AlternatingStates, weights_written
from hvdtrain.algorithms.interval_sums import IntervalSums
from hvdtrain.algorithms.micro_batches import cut_batch
from hvdtrain.errors import UsageError
from hvdtrain.named_arrays import State
from hvdtrain.topology.virtual_workers import VirtualWorkers


class TorchWorkerStates(AlternatingStates[torch.Tensor]):
    """All buffers of the model but those that share a weight's memory, and so change with it."""

    def __init__(self, model: nn.Module, arrays: Arrays, workers: VirtualWorkers) -> None:
        super().__init__(model, arrays, workers)
        save_all_buffers(model)

    def reset(self) -> None:
        weights = {parameter.untyped_storage().data_ptr() for parameter in self._model.parameters()}
        named = self._model.named_buffers()
        self._weights = {name for name, buffer in named if buffer.untyped_storage().data_ptr() in weights}
        self._shapes = [buffer.shape for buffer in self._buffers()]
        super().reset()

    def use(self, worker: int) -> None:
        if [buffer.shape for buffer in self._buffers()] != self._shapes:
            raise _other_buffers()
        super().use(worker)

    def _unsaved(self) -> State:
        buffers = unsaved_buffers(self._model).items()
        return {f"model/{name}": to_array(known_to_numpy(b)) for name, b in buffers if name not in self._weights}

    def stamp(self) -> dict[str, tuple[int, int]]:
        named = self._model.named_buffers()
        return {name: (id(buffer), buffer._version) for name, buffer in named if name not in self._weights}

    def changed_since(self, stamp: dict[str, tuple[int, int]]) -> list[str]:
        return [name for name, version in self.stamp().items() if version != stamp.get(name, version)]

    def _buffers(self) -> list[torch.Tensor]:
        return [buffer for name, buffer in self._model.named_buffers() if name not in self._weights]

    def _read(self) -> list[torch.Tensor]:
        return [buffer.detach().clone() for buffer in self._buffers()]

    @torch.no_grad()
    def _write(self, values: list[torch.Tensor]) -> None:
        buffers = self._buffers()
        if len(buffers) != len(values):
            raise _other_buffers()
        for buffer, value in zip(buffers, values, strict=True):
            if buffer.shape != value.shape:
                raise _other_buffers()
            if buffer.device.type != "cpu" or not torch.equal(buffer, value):  # which are written count as changed
                buffer.copy_(value)


@dataclass(frozen=True)
class WorkersPasses(WholeModelPasses):
    """Implements `Passes`. The slices of a batch always have the same shapes, so that the same kernels compute them."""

    workers: VirtualWorkers
    states: AlternatingStates[torch.Tensor]
    measurements: Sequence[Measurement]  # of each of the workers

    def train(self, batch: LoadedBatch, step: int) -> None:
        own = self.workers.own
        for worker, part, measurement in zip(own, self._parts(batch), self.measurements, strict=True):
            self.states.use(worker)
            self.mode.set(True)
            self.draws.begin_of(worker, step)
            with self.weights_unchanged():
                self._add(part, worker + 1 == own.stop, measurement, aligned=True)

    def evaluate(self, batch: LoadedBatch) -> None:
        for worker, part, measurement in zip(self.workers.own, self._parts(batch), self.measurements, strict=True):
            self.evaluate_part(part, worker, batch.step, measurement)

    def evaluate_part(self, part: LoadedBatch, worker: int, step: int, measurement: Measurement) -> None:
        self.draws.begin_of(worker, step)  # for models that draw in validation
        self._evaluate(self.forward, part, measurement, aligned=True)

    def read_sums(self) -> list[MeasureTotals]:
        return [measurement.read() for measurement in self.measurements]

    def continue_sums(self, before: IntervalSums) -> None:
        for worker, measurement in zip(self.workers.own, self.measurements, strict=True):
            measurement.begin(totals_of(before, worker))

    @contextmanager
    def weights_unchanged(self) -> Iterator[None]:
        """Raises `UsageError`: the pass in the block has changed weights."""
        before = self._versions()
        yield
        if before != self._versions():
            raise weights_written()

    def _versions(self) -> list[int]:
        return [parameter._version for parameter in self.forward.parameters()]

    def _parts(self, batch: LoadedBatch) -> list[LoadedBatch]:
        return cut_batch(batch, self.workers.slots)


def _other_buffers() -> UsageError:
    return UsageError(
        "--virtual-workers is given, and the model has made, removed or reshaped a buffer in a pass.",
        "Each virtual worker has its own values of all buffers, which are put into the model before its pass.",
        "register all buffers in build_model(), with the shapes that they keep, or leave --virtual-workers out.",
    ).on_all_ranks()
