"""Decoded batches as PyTorch tensors."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, overload

import torch
from numpy.typing import NDArray

from data_sharding.errors import PlanError
from data_sharding.loading.shard_loader import LoadedBatch

_TENSOR_KINDS: Final = "biufc"
"""Kinds of numpy dtypes that become tensors: truth values, integers, floats, complex numbers."""


class TorchBatch(NamedTuple):
    """One rank's part of one step, k records: `LoadedBatch` in tensors. DataLoader can pin its memory.

    Attributes:
        step: step of the epoch; -1 where a sampler of another kind chose the records.
        ids: int64[k].
        weights: float32[k], 0 for masked slots and for damaged records.
        features: what the decode function made, with k rows each; arrays that no tensor can hold (strings, objects)
            stay numpy arrays.
        global_weight: real records of the step over all ranks, as planned.
    """

    step: int
    ids: torch.Tensor
    weights: torch.Tensor
    features: dict[str, Any]
    global_weight: float


class DecodedRows(Sequence[dict[str, Any]]):
    """k decoded records: `batch` has them together; as a sequence it gives one after the other.

    So `collate` takes the batch as it is, and torch's `default_collate` makes a dict of tensors from the records.
    """

    def __init__(self, batch: LoadedBatch) -> None:
        self.batch = batch
        taken = {"id", "weight"} & set(batch.features)
        if taken:
            raise PlanError(
                f"The decode function returned a feature named {taken.pop()!r}.",
                "An item has the record's id and weight under these names.",
                "give the feature another name.",
            )

    def __len__(self) -> int:
        return len(self.batch.ids)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [self._row(row) for row in range(len(self))[index]]
        return self._row(range(len(self))[index])

    def _row(self, row: int) -> dict[str, Any]:
        features = {name: array[row] for name, array in self.batch.features.items()}
        return {**features, "id": self.batch.ids[row], "weight": self.batch.weights[row]}


def to_torch(batch: LoadedBatch) -> TorchBatch:
    """The same batch in tensors, which share the arrays' memory where they can be written to."""
    features = {
        name: torch.as_tensor(_own(array)) if array.dtype.kind in _TENSOR_KINDS else array
        for name, array in batch.features.items()
    }
    return TorchBatch(
        batch.step, torch.as_tensor(_own(batch.ids)), torch.as_tensor(batch.weights), features, batch.global_weight
    )


def collate(rows: DecodedRows) -> TorchBatch:
    """`collate_fn` for a DataLoader over `ShardDataset`: the batch as it was decoded; PlanError for other items."""
    if not isinstance(rows, DecodedRows):
        raise PlanError(
            f"collate was given {type(rows).__name__}.",
            "It takes whole batches, as ShardDataset gives them.",
            "use it with ShardDataset and a batch sampler, or leave out collate_fn.",
        )
    return to_torch(rows.batch)


def _own(array: NDArray[Any]) -> NDArray[Any]:
    """An array that can be written to, in this machine's byte order, with no negative stride: a tensor needs that."""
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if not native.flags.writeable or any(stride < 0 for stride in native.strides):
        return native.copy()
    return native
