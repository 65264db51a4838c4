"""The passes of virtual workers in torch: one after the other, each with its own records, draws and buffers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import MeasureTotals
from hvdtrain.adapters.torch.passes import Measurement, WholeModelPasses
from hvdtrain.adapters.worker_parts import parts_of_workers
from hvdtrain.adapters.worker_states import AlternatingStates
from hvdtrain.topology.virtual_workers import VirtualWorkers


class TorchWorkerStates(AlternatingStates[torch.Tensor]):
    """All buffers of the model."""

    def _read(self) -> list[torch.Tensor]:
        return [buffer.detach().clone() for buffer in self._model.buffers()]

    @torch.no_grad()
    def _write(self, values: list[torch.Tensor]) -> None:
        for buffer, value in zip(self._model.buffers(), values, strict=True):
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
            self._add(part, worker + 1 == own.stop, measurement, aligned=True)

    def evaluate(self, batch: LoadedBatch) -> None:
        for part, measurement in zip(self._parts(batch), self.measurements, strict=True):
            self._evaluate(self.forward, part, measurement, aligned=True)

    def read_sums(self) -> list[MeasureTotals]:
        return [measurement.read() for measurement in self.measurements]

    def _parts(self, batch: LoadedBatch) -> list[LoadedBatch]:
        return parts_of_workers(batch, self.workers)
