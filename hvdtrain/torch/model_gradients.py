"""The gradients of a model in `DistributedDataParallel`: reduced when a backward pass ends."""

from collections import Counter
from typing import Any

import torch
from horovod.torch import mpi_ops
from torch import nn

from hvdtrain.adapters.torch.buckets import Bucket
from hvdtrain.adapters.torch.comm_hooks import CommHook
from hvdtrain.torch.collectives import bounded
from hvdtrain.torch.compilation import not_compiled
from hvdtrain.torch.loop_gradients import LoopGradients
from hvdtrain.torch.reduction import DenseReduction


class ModelGradients(LoopGradients):
    """Reduces the gradients of each backward pass, unless `held`, before `backward()` returns.

    Attributes:
        joins: some ranks may have called `hvd.join()`, and add zeros to what the others send.
        divides_by_active: then the mean is that of the other ranks, unless a hook was set, as in torch.
        is_static: each backward pass adds as often to a gradient as the one before, which is maybe more than once: a
            layer that is used twice, within reentrant checkpoints. Buckets start at the last time.
    """

    _passes_hint = (
        "give DistributedDataParallel(static_graph=True) where a layer is used several times within checkpoints, or "
        "checkpoint it with use_reentrant=False."
    )

    divides_by_active = False
    is_static = False
    _ends = False  # `finish` will be called when the backward pass ends
    _next = 0  # the first bucket that has not begun, where their order is fixed

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._additions: Counter[nn.Parameter] = Counter()  # to each gradient, in this pass so far; where it is static
        self._expected: Counter[nn.Parameter] = Counter()  # and in the pass before
        super().__init__(*arguments, **named)

    @property
    def joins(self) -> bool:
        return self._hook.some_joined

    @joins.setter
    def joins(self, some_joined: bool) -> None:
        self._hook.some_joined = some_joined

    def set_hook(self, hook: CommHook) -> None:
        hook.some_joined = self.joins
        super().set_hook(hook)

    def expect_backward(self, held: bool) -> None:
        """A forward pass was made, whose backward pass reduces gradients unless `held`."""
        self.held, self._ends, self._additions = held, False, Counter()

    @not_compiled
    def expect_end(self, _gradient: Any = None) -> None:
        """A backward pass has begun: reduce when it ends."""
        if not self._ends and not self.held:
            self._ends = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)  # as FSDP

    @not_compiled
    def _end(self) -> None:
        self._ends, self._expected, self._additions = False, self._additions, Counter()
        if self.joins or not self._hook.keeps_unused:
            self._finish_counting_uses()
        else:
            self.finish()

    def _finish_counting_uses(self) -> None:
        """Where no marks tell which parameters no rank has used (`UsageMarks`), since zeros or a function hide them."""
        trainable = self.parameters
        counted = torch.tensor([*(parameter.grad is not None for parameter in trainable), True], dtype=torch.int32)
        within = self._reduction.process_set
        bounded(mpi_ops.allreduce_)(counted, op=mpi_ops.Sum, name="hvdtrain.uses", process_set=within)
        *uses, active = counted.tolist()
        self.finish()
        is_own_mean = self.joins and self.divides_by_active and isinstance(self._hook, DenseReduction)
        for parameter, used in zip(trainable, uses, strict=True):
            if not used:
                parameter.grad = None
            elif is_own_mean and parameter.grad is not None:
                parameter.grad.mul_(mpi_ops.size() / active)

    def _is_last_pass(self, parameter: nn.Parameter) -> bool:
        if not self._ends:
            self.expect_end()
        if not self.is_static:
            return not self.held
        self._additions[parameter] += 1
        return not self.held and self._additions[parameter] == self._expected[parameter]

    def _cut(self) -> list[Bucket]:
        self._full: set[Bucket] = set()
        return super()._cut()

    def _expect(self) -> None:
        self._full.clear()
        self._next = 0
        super()._expect()

    def _on_full(self, bucket: Bucket) -> None:
        if not self._hook.in_order:
            super()._on_full(bucket)
            return
        self._full.add(bucket)
        while self._next < len(self._buckets) and self._buckets[self._next] in self._full:
            super()._on_full(self._buckets[self._next])
            self._next += 1
