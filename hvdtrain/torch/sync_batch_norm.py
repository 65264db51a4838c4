"""`hvd.SyncBatchNorm`: batch statistics over all ranks, on CPUs too."""

from functools import partial
from typing import Any

import torch
from horovod.torch import mpi_ops
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hvdtrain.adapters.torch.sync_batch_norm import SumOverRanks, SynchronizedBatchNorm, convert_sync_batch_norm
from hvdtrain.torch.collectives import bounded
from hvdtrain.torch.process_groups import process_set_of


class SyncBatchNorm(SynchronizedBatchNorm):
    """BatchNorm whose mean and variance, in training, are those of all ranks' rows, however many each has.

    In evaluation it is torch's BatchNorm: without running statistics it takes those of this rank's rows.

    Args: as those of `torch.nn.SyncBatchNorm`, with features of shape [N, C, ...].
        process_group: None, or a `ProcessSet` of Horovod's, whose ranks share their statistics.
    """

    place = "hvdtrain.sync_batch_norm"  # of one layer at a time: each waits for its sums

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        **named: Any,
    ) -> None:
        _BatchNorm.__init__(self, num_features, eps, momentum, affine, track_running_stats, **named)
        self.sum_over_ranks = _sum_within(process_group)

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002  torch's name
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module, process_group: Any = None) -> nn.Module:
        """Let every BatchNorm of `module` take its statistics over the ranks; returns `module`, which is changed."""
        if any(isinstance(layer, _BatchNorm) for layer in module.modules()):
            convert_sync_batch_norm(module, _sum_within(process_group), "convert_sync_batchnorm")
        return module


def _sum_within(process_group: Any) -> SumOverRanks:
    return partial(_sum, process_set=process_set_of(process_group))


def _sum(tensor: torch.Tensor, name: str, process_set: Any) -> torch.Tensor:
    """In-place sum of a flat tensor. Collective."""
    total: torch.Tensor = bounded(mpi_ops.allreduce_)(tensor, name=name, op=mpi_ops.Sum, process_set=process_set)
    return total
