"""A task's measures of micro batches in torch, and their sums."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from data_sharding import LoadedBatch
from hvdtrain.adapters.forward_pass import batch_mask
from hvdtrain.adapters.torch.device import low_precision
from hvdtrain.adapters.torch.measure_sums import MeasureSums
from hvdtrain.config.training_options import Precision
from hvdtrain.task.task import Task, check_measures


@dataclass(frozen=True, slots=True)
class Rows:
    """Which rows of a micro batch count.

    Attributes:
        weights: float32[n], 0 or 1; None where all n rows count, which spares the device some work.
        real: bool[n], those that count; None where all do.
        count: how many do.
    """

    weights: torch.Tensor | None
    real: torch.Tensor | None
    count: int

    @classmethod
    def of(cls, weights: NDArray[np.float32], place: Callable[[Any], torch.Tensor]) -> "Rows":
        count = int(np.count_nonzero(weights))
        if count == len(weights):
            return cls(None, None, count)
        placed = place(weights)
        return cls(placed, placed > 0, count)


class Measurement:
    """Asks a task for its measures, checks them, and adds them up.

    Args:
        task: whose `measure` is called.
        precision: of the forward pass.
        device: on which its arrays are.
    """

    def __init__(self, task: Task, precision: Precision, device: torch.device) -> None:
        self._task, self._precision, self._device = task, precision, device
        self._sums = MeasureSums()
        self._equal_shares: tuple[tuple[int, float], torch.Tensor] | None = None
        self.read = self._sums.read

    def rows(self, part: LoadedBatch) -> Rows:
        return Rows.of(part.weights, self._place)

    def placed(self, features: Mapping[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
        """Arrays of `decode` on the device."""
        return {name: self._place(array) for name, array in features.items()}

    def measure(self, model: Any, features: Mapping[str, torch.Tensor], rows: Rows, samples: int) -> torch.Tensor:
        """The losses [n] of the samples. All measures are added to the sums, for rows that count."""
        with low_precision(self._precision, self._device), batch_mask(rows.real):
            measures = self._task.measure(model, features)
        check_measures(measures, samples, torch.is_tensor)
        self._sums.add(measures, rows.weights, rows.count)
        losses: torch.Tensor = measures["loss"]
        return losses

    def shares(self, rows: Rows, losses: torch.Tensor, share: float) -> torch.Tensor:
        """By what each loss counts, float32[n]: `share`, or 0. Made anew where something is different."""
        if rows.weights is not None:
            return rows.weights * share
        if self._equal_shares is None or self._equal_shares[0] != (len(losses), share):
            self._equal_shares = (len(losses), share), torch.full_like(losses, share)
        return self._equal_shares[1]

    def _place(self, array: Any) -> torch.Tensor:
        writable = array if array.flags.writeable else array.copy()  # torch warns of, and could write into, others
        tensor = torch.from_numpy(writable)
        if self._device.type == "cuda":
            tensor = tensor.pin_memory()  # a copy from other memory would wait for the kernels before it
        return tensor if self._device.type == "cpu" else tensor.to(self._device, non_blocking=True)
