"""What ranks compare before they exchange gradients for the first time: their parameters, and the weights in them."""

import warnings
import zlib
from collections.abc import Sequence
from typing import Any, Final

import torch
from horovod.torch import mpi_ops

from hvdtrain.adapters.torch.buckets import Trainable
from hvdtrain.errors import UsageError
from hvdtrain.torch.collectives import bounded

_INTEGERS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class MismatchedModelsError(UsageError, ValueError):
    """Ranks have different parameters."""


def compare(trainable: Trainable, process_set: Any) -> None:
    """Raise `MismatchedModelsError` where ranks have other parameters. Collective."""
    shapes = ";".join(f"{name} {tuple(p.shape)} {p.dtype}" for name, p in trainable)
    if not _are_equal(shapes.encode(), "parameters", process_set):
        raise MismatchedModelsError(
            f"The {len(trainable)} parameters of this rank are not those of the other ranks.",
            "Their gradients would be added to those of other parameters.",
            "build the same model on all ranks, and give the optimizer its parameters in the same order.",
        )


def warn_of_unequal_weights(trainable: Trainable, process_set: Any) -> None:
    """Warn, on all ranks, where they begin with different weights, as Horovod lets them. Collective."""
    sums = torch.stack([_sum_of_bits(p.detach()).cpu() for _, p in trainable]).tolist() if trainable else []
    if not _are_equal(repr(sums).encode(), "weights", process_set):
        warnings.warn(
            "The ranks begin with different weights. Equal gradients will not make them equal, so each rank trains a "
            "model of its own.\nHINT: call hvd.broadcast_parameters(model.state_dict(), root_rank=0) before the "
            "first update, and after hvd.join() with the rank that it returns as the root.",
            stacklevel=2,
        )


def reduce_integers(numbers: Sequence[int], what: str, process_set: Any, op: Any = mpi_ops.Sum) -> list[int]:
    """The sums over ranks, or what else `op` says. Collective. A rank that has called `hvd.join()` adds zeros."""
    reduced = bounded(mpi_ops.allreduce)(
        torch.tensor(numbers), name=f"hvdtrain.agree.{what}", op=op, process_set=process_set
    )
    return [int(number) for number in reduced.tolist()]


def _are_equal(text: bytes, what: str, process_set: Any) -> bool:
    """By sums, since these work where some ranks have called `hvd.join()`."""
    digest = zlib.crc32(text) & 0xFF_FFFF
    ranks, total, squares = reduce_integers([1, digest, digest**2], what, process_set)
    return total == ranks * digest and squares == ranks * digest**2


def _sum_of_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Of all elements, read as integers: the same in any order of adding, unlike a sum of floating-point numbers."""
    integers = _INTEGERS.get(tensor.element_size())
    return tensor.view(integers).sum(dtype=torch.int64) if integers else torch.zeros((), dtype=torch.int64)
