"""`hvd.Mean`: a metric of all ranks' samples, exact however many each rank has."""

from typing import Any

import torch
from horovod.torch import mpi_ops

from hvdtrain.errors import UsageError
from hvdtrain.torch.collectives import bounded
from hvdtrain.torch.start import require_start


class Mean:
    """The weighted mean of what all ranks have added: sums and weights are added in float64, and divided at the end.

        loss = hvd.Mean()
        for x, y in batches:
            loss.update(criterion(model(x), y), len(x))
        print(loss.compute())

    A mean of the ranks' means, as `hvd.allreduce(value)` gives it, is another number where ranks have unequal batches.
    """

    def __init__(self) -> None:
        self._sums: torch.Tensor | None = None

    def update(self, value: torch.Tensor | float, weight: float = 1.0) -> None:
        """Add a mean of `weight` samples; of none, it may be NaN. It stays on its device: nothing waits."""
        for one in (value, weight):
            if isinstance(one, torch.Tensor) and one.numel() != 1:
                raise UsageError(
                    f"hvd.Mean.update() was given a tensor of {one.numel()} numbers.",
                    "It adds one number, the mean of `weight` samples.",
                    "write mean.update(values.mean(), len(values)).",
                )
        weight = weight.reshape(()) if isinstance(weight, torch.Tensor) else weight
        if isinstance(value, torch.Tensor):
            value = value.detach().double().reshape(())
            added = torch.stack([_product(value, weight), torch.full_like(value, weight)])
        else:
            added = torch.tensor([_product(value, weight), weight], dtype=torch.float64)
        self._sums = added if self._sums is None else self._sums.to(added.device) + added

    def compute(self) -> float:
        """The mean over all ranks; not a number where nothing was added. Collective: call it on all ranks."""
        require_start("hvd.Mean.compute()")
        sums = torch.zeros(2, dtype=torch.float64) if self._sums is None else self._sums.cpu()
        total: Any = bounded(mpi_ops.allreduce)(sums, op=mpi_ops.Sum, name="hvdtrain.mean")
        value, weight = total.tolist()
        return value / weight if weight else float("nan")

    def reset(self) -> None:
        """Begin again."""
        self._sums = None


def _product(value: Any, weight: Any) -> Any:
    """0 where the weight is 0, whatever the value is."""
    if isinstance(weight, torch.Tensor):
        return torch.where(weight == 0, 0.0, value * weight)
    if weight == 0:
        return torch.zeros_like(value) if isinstance(value, torch.Tensor) else 0.0
    return value * weight
