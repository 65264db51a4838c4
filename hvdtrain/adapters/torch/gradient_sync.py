"""The sum of all ranks' gradients in torch, and what the adapter requires of any other way to synchronize ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import nn

from hvdtrain.adapters.gradient_sync import SyncState, require_adasum
from hvdtrain.adapters.torch.buckets import GradientBuckets
from hvdtrain.adapters.torch.comm_hooks import (
    Adasum,
    BFloat16Sum,
    CommHook,
    Float16Sum,
    Handle,
    PlainSum,
    StartSum,
)
from hvdtrain.adapters.torch.powersgd import PowerSgd
from hvdtrain.algorithms.powersgd import DEFAULT_RANK
from hvdtrain.config.training_options import TrainingOptions

Wait = Callable[[Handle], Any]
Trainable = Sequence[tuple[str, nn.Parameter]]


class GradientSync(SyncState, ABC):
    """The gradients, or the weights, of one rank together with those of the others.

    The order of an update: for each micro batch `set_grad_sync(last)` and a backward pass; `finish`; the
    optimizer's step; `after_update`; `clear`.
    """

    @abstractmethod
    def set_grad_sync(self, last: bool) -> None:
        """A backward pass follows; `last`: no other one adds to the gradients of this update."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until every parameter's `.grad` is what the optimizer needs. Collective."""

    @abstractmethod
    def clear(self) -> None:
        """Forget the gradients."""


@final
class NoSync(GradientSync):
    """One process: no communication, and dense gradients for all parameters as with many ranks.

    Optimizers skip a parameter without a gradient, and so would not decay its weights; for sparse gradients they have
    other rules. Parameters in `without` are left to others.
    """

    def __init__(self, model: nn.Module, without: frozenset[nn.Parameter] = frozenset()) -> None:
        super().__init__()
        self._trainable = [p for p in model.parameters() if p.requires_grad and p not in without]

    def set_grad_sync(self, last: bool) -> None:
        pass

    def finish(self) -> None:
        for parameter in self._trainable:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            elif parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()

    def clear(self) -> None:
        for parameter in self._trainable:
            parameter.grad = None


@final
class SummedGradients(GradientSync):
    """Sums the ranks' gradients, each of which is a part of the global batch's; or what the comm hook makes of them.

    Args:
        trainable: names and parameters, in the model's order.
        hook: how each bucket is reduced.
        wait: waits for a handle of the hook.
    """

    def __init__(self, trainable: Trainable, hook: CommHook, wait: Wait) -> None:
        super().__init__(hook)
        self._buckets = GradientBuckets(trainable, hook, wait)

    def set_grad_sync(self, last: bool) -> None:
        self._buckets.hold(not last)

    def finish(self) -> None:
        self._buckets.finish()

    def clear(self) -> None:
        self._buckets.clear()


def trainable_of(model: nn.Module, without: frozenset[nn.Parameter] = frozenset()) -> Trainable:
    """Names and parameters that require gradients, in the model's order."""
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad and p not in without]


def summed_gradients(trainable: Trainable, options: TrainingOptions, alone: bool = False) -> SummedGradients:
    """With the comm hook that `options` ask for.

    Args:
        trainable: names and parameters, in the model's order.
        options: compression, its rank and the reduce op.
        alone: one process, without Horovod; it needs a comm hook for PowerSGD only, which changes gradients there too.

    Raises:
        UsageError: Horovod has no such op here.
    """
    if alone:
        return SummedGradients(trainable, _powersgd(lambda tensor, _name: tensor, 1, trainable, options), lambda h: h)
    import horovod.torch as hvd

    def start_sum(tensor: torch.Tensor, name: str) -> Handle:
        return hvd.allreduce_async_(tensor, name=name, op=hvd.Sum)

    loss_multiplier = 1.0 if options.reduce_op == "average" else float(hvd.size())
    hook: CommHook
    if options.reduce_op == "adasum":
        require_adasum(hvd, on_gpu=any(p.is_cuda for _, p in trainable))
        hook = Adasum(hvd)
    elif options.compression == "fp16":
        hook = Float16Sum(start_sum, loss_multiplier)
    elif options.compression == "bf16":
        hook = BFloat16Sum(hvd, loss_multiplier)
    elif options.compression == "powersgd":
        hook = _powersgd(start_sum, hvd.size(), trainable, options)
    else:
        hook = PlainSum(start_sum, loss_multiplier)
    return SummedGradients(trainable, hook, hvd.synchronize)


def _powersgd(start_sum: StartSum, size: int, trainable: Trainable, options: TrainingOptions) -> PowerSgd:
    rank = options.powersgd_rank or DEFAULT_RANK
    return PowerSgd(start_sum, size, rank, [name for name, _ in trainable], total=options.reduce_op == "sum")
