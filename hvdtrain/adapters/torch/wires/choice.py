"""Which wire the knobs ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from hvdtrain import powersgd
from hvdtrain.adapters.adasum import require_adasum
from hvdtrain.adapters.torch.wires.adasum import Adasum
from hvdtrain.adapters.torch.wires.bf16 import BFloat16Sum
from hvdtrain.adapters.torch.wires.fp16 import Float16Sum
from hvdtrain.adapters.torch.wires.interface import Handle, StartSum, Wire
from hvdtrain.adapters.torch.wires.plain import PlainSum
from hvdtrain.adapters.torch.wires.powersgd import PowerSgd
from hvdtrain.knobs import Knobs

Wait = Callable[[Handle], Any]


def open_wire(trainable: Sequence[tuple[str, nn.Parameter]], knobs: Knobs, alone: bool) -> tuple[Wire, Wait]:
    """The wire, and how to wait for its handles.

    Args:
        trainable: names and parameters, in the model's order.
        knobs: compression, its rank and the reduce op.
        alone: one process, without Horovod; it needs a wire for PowerSGD only, which changes gradients there too.

    Raises:
        UsageError: Horovod has no such op here.
    """
    if alone:
        return _powersgd(_already_the_sum, 1, trainable, knobs), lambda handle: handle
    import horovod.torch as hvd

    def start_sum(tensor: torch.Tensor, name: str) -> Handle:
        return hvd.allreduce_async_(tensor, name=name, op=hvd.Sum)

    size = hvd.size()
    share_factor = 1.0 if knobs.reduce_op == "average" else float(size)
    wire: Wire
    if knobs.reduce_op == "adasum":
        require_adasum(hvd, on_gpu=any(p.is_cuda for _, p in trainable))
        wire = Adasum(hvd)
    elif knobs.compression == "fp16":
        wire = Float16Sum(start_sum, share_factor)
    elif knobs.compression == "bf16":
        wire = BFloat16Sum(hvd, share_factor)
    elif knobs.compression == "powersgd":
        wire = _powersgd(start_sum, size, trainable, knobs)
    else:
        wire = PlainSum(start_sum, share_factor)
    return wire, hvd.synchronize


def _already_the_sum(tensor: torch.Tensor, name: str) -> Handle:  # noqa: ARG001  of one rank
    return tensor


def _powersgd(start_sum: StartSum, size: int, trainable: Sequence[tuple[str, nn.Parameter]], knobs: Knobs) -> PowerSgd:
    rank = knobs.powersgd_rank or powersgd.DEFAULT_RANK
    return PowerSgd(start_sum, size, rank, [name for name, _ in trainable], total=knobs.reduce_op == "sum")
