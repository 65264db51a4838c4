"""A model's buffers, made equal on all ranks: one message for each dtype."""

from collections.abc import Iterator
from typing import Any

import torch
from horovod.torch import mpi_ops
from torch import nn

from hvdtrain.torch.collectives import bounded
from hvdtrain.torch.sent_dtypes import as_bits, as_known, as_summable, from_bits, require_dense
from hvdtrain.torch.uneven_batches import active_ranks

_NAME = "hvdtrain.buffers"


@torch.no_grad()
def broadcast_buffers_of(module: nn.Module, root: int, process_set: Any) -> None:
    """Give all ranks of the set the buffers of the root, which is its number in the world. Collective."""
    for name, buffers, flat in _by_dtype(module):
        bounded(mpi_ops.broadcast_)(as_known(flat), root, name=name, process_set=process_set)
        _copy_back(flat, buffers)


@torch.no_grad()
def share_buffers_while_joining(module: nn.Module) -> None:
    """Give all ranks the buffers of the last one that has not called `join`, as torch does: who has, adds zeros.
    Collective."""
    is_source = not any(active_ranks()[mpi_ops.rank() + 1 :])
    for name, buffers, flat in _by_dtype(module):
        bits = as_bits(flat)  # whole numbers: the sum with zeros has the same bits, whatever they mean
        sent = as_summable(bits if is_source else torch.zeros_like(bits))
        bounded(mpi_ops.allreduce_)(sent, op=mpi_ops.Sum, name=name)
        _copy_back(from_bits(sent.to(bits.dtype), flat.dtype), buffers)


def _by_dtype(module: nn.Module) -> Iterator[tuple[str, list[torch.Tensor], torch.Tensor]]:
    """A name, the buffers of one dtype and device, and their numbers in one flat tensor."""
    groups: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for name, buffer in module.named_buffers():
        require_dense(name, buffer)
        groups.setdefault((buffer.dtype, buffer.device), []).append(buffer)
    for (dtype, _), buffers in groups.items():
        yield f"{_NAME}.{dtype}", buffers, torch.cat([buffer.reshape(-1) for buffer in buffers])


def _copy_back(flat: torch.Tensor, buffers: list[torch.Tensor]) -> None:
    for part, buffer in zip(torch.split(flat, [b.numel() for b in buffers]), buffers, strict=True):
        buffer.copy_(part.view_as(buffer))
