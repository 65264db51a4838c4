"""`hvd.SyncBatchNorm`: batch statistics over all ranks, on CPUs too."""

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hvdtrain.adapters.torch.sync_batch_norm import SynchronizedBatchNorm, convert_sync_batch_norm, horovod_sum


class SyncBatchNorm(SynchronizedBatchNorm):
    """BatchNorm whose mean and variance, in training, are those of all ranks' rows, however many each has.

    Args: as those of `torch.nn.BatchNorm2d`; features are of shape [N, C, ...].
    """

    sum_over_ranks = staticmethod(horovod_sum)
    place = "hvdtrain.sync_batch_norm"  # of one layer at a time: each waits for its sums

    def __init__(self, num_features: int, *arguments: Any, **named: Any) -> None:
        _BatchNorm.__init__(self, num_features, *arguments, **named)

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002  torch's name
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module, process_group: Any = None) -> nn.Module:  # noqa: ARG003  torch's
        """Let every BatchNorm of `module` take its statistics over all ranks; returns `module`, which is changed."""
        if any(isinstance(layer, _BatchNorm) for layer in module.modules()):
            convert_sync_batch_norm(module, horovod_sum)
        return module
