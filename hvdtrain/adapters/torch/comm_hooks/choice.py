"""Which wire the options ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from hvdtrain.adapters.adasum import require_adasum
from hvdtrain.adapters.torch.comm_hooks.adasum import Adasum
from hvdtrain.adapters.torch.comm_hooks.bf16 import BFloat16Sum
from hvdtrain.adapters.torch.comm_hooks.fp16 import Float16Sum
from hvdtrain.adapters.torch.comm_hooks.interface import CommHook, Handle, StartSum
from hvdtrain.adapters.torch.comm_hooks.plain import PlainSum
from hvdtrain.adapters.torch.comm_hooks.powersgd import PowerSgd
from hvdtrain.algorithms import powersgd
from hvdtrain.config.training_options import TrainingOptions

Wait = Callable[[Handle], Any]


def open_comm_hook(
    trainable: Sequence[tuple[str, nn.Parameter]], options: TrainingOptions, alone: bool
) -> tuple[CommHook, Wait]:
    """The wire, and how to wait for its handles.

    Args:
        trainable: names and parameters, in the model's order.
        options: compression, its rank and the reduce op.
        alone: one process, without Horovod; it needs a wire for PowerSGD only, which changes gradients there too.

    Raises:
        UsageError: Horovod has no such op here.
    """
    if alone:
        return _powersgd(_already_the_sum, 1, trainable, options), lambda handle: handle
    import horovod.torch as hvd

    def start_sum(tensor: torch.Tensor, name: str) -> Handle:
        return hvd.allreduce_async_(tensor, name=name, op=hvd.Sum)

    size = hvd.size()
    loss_multiplier = 1.0 if options.reduce_op == "average" else float(size)
    wire: CommHook
    if options.reduce_op == "adasum":
        require_adasum(hvd, on_gpu=any(p.is_cuda for _, p in trainable))
        wire = Adasum(hvd)
    elif options.compression == "fp16":
        wire = Float16Sum(start_sum, loss_multiplier)
    elif options.compression == "bf16":
        wire = BFloat16Sum(hvd, loss_multiplier)
    elif options.compression == "powersgd":
        wire = _powersgd(start_sum, size, trainable, options)
    else:
        wire = PlainSum(start_sum, loss_multiplier)
    return wire, hvd.synchronize


def _already_the_sum(tensor: torch.Tensor, name: str) -> Handle:  # noqa: ARG001  of one rank
    return tensor


def _powersgd(
    start_sum: StartSum, size: int, trainable: Sequence[tuple[str, nn.Parameter]], options: TrainingOptions
) -> PowerSgd:
    rank = options.powersgd_rank or powersgd.DEFAULT_RANK
    return PowerSgd(start_sum, size, rank, [name for name, _ in trainable], total=options.reduce_op == "sum")
