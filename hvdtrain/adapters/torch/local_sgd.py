"""Local SGD in torch: ranks update by gradients of their own or of their process set, and average weights now and then.

Stich 2019 (arXiv:1805.09767); with momentum buffers averaged too, Yu, Jin and Yang 2019 (arXiv:1905.03817); with sets,
Lin et al. 2020 (arXiv:1808.07217, "hierarchical local SGD").
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, final

import torch
from torch import nn

from hvdtrain.adapters.stateless import StatelessGradientSync
from hvdtrain.adapters.torch.buckets import BUCKET_BYTES, GradientBuckets
from hvdtrain.adapters.torch.comm_hooks.plain import PlainSum
from hvdtrain.adapters.torch.summed_gradients import NoSync
from hvdtrain.comm.process_sets import own_process_set

_UNDER_WAY = 8  # buckets at a time: bounds the memory for copies
_WIRE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}  # Horovod has no bfloat16; float16 would round


def open_local_sgd(model: nn.Module, optimizer: torch.optim.Optimizer, sync_every: int, in_sets: bool) -> LocalSgd:
    """The exchange of --sync-every; `in_sets`: Horovod's process sets have been formed (`comm.process_sets`)."""
    return LocalSgd(model, optimizer, sync_every, own_process_set() if in_sets else None)


class _Gradients(Protocol):
    def set_grad_sync(self, last: bool) -> None: ...

    def finish(self) -> float: ...

    def clear(self) -> None: ...


@final
class LocalSgd(StatelessGradientSync):
    """Implements `GradientSync`.

    Each rank's samples count as if its set were all there is, so that with equal slices its gradient is the mean over
    the set's samples. After an update with SGD, with or without momentum, the mean of all ranks' weights is what
    synchronous training would have come to from the same weights: with `sync_every` 1 they are equal, whatever the
    slices' sizes.

    Args:
        model: its trainable parameters are averaged.
        optimizer: its float slots are averaged too, except for counts of steps, which are equal anyway.
        sync_every: updates from one average to the next.
        process_set: Horovod's set that this rank is in; None: each rank is alone.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, sync_every: int, process_set: Any) -> None:
        import horovod.torch as hvd

        self._hvd: Any = hvd
        self._model, self._optimizer, self._sync_every = model, optimizer, sync_every
        of_set = 1 if process_set is None else process_set.size()
        self._gradients: _Gradients = NoSync(model) if of_set == 1 else _WithinSet(model, hvd, process_set)
        self.loss_multiplier = hvd.size() / of_set
        self._apart = False
        self._waited = 0.0

    def set_grad_sync(self, last: bool) -> None:
        self._gradients.set_grad_sync(last)

    def finish(self) -> float:
        waited, self._waited = self._waited, 0.0
        return waited + self._gradients.finish()

    def after_update(self, step: int) -> None:
        self._apart = True
        if (step + 1) % self._sync_every == 0:
            self.average_weights()

    def clear(self) -> None:
        self._gradients.clear()

    def average_weights(self) -> None:
        """Average, unless nothing was updated since the last time: the same on all ranks."""
        if not self._apart:
            return
        begin = time.perf_counter()
        under_way: deque[_Average] = deque()
        for number, tensors in enumerate(_buckets(self._averaged())):
            under_way.append(_Average(self._hvd, tensors, f"hvdtrain.weights.{number}"))
            if len(under_way) == _UNDER_WAY:
                under_way.popleft().arrive()
        for average in under_way:
            average.arrive()
        self._apart = False
        self._waited += time.perf_counter() - begin

    def _averaged(self) -> Iterator[torch.Tensor]:
        """In the same order on all ranks: each has a gradient for every parameter, and so the same slots."""
        trained = [p for p in self._model.parameters() if p.requires_grad]
        yield from (parameter.detach() for parameter in trained)
        for parameter in trained:
            for name, slot in sorted(self._optimizer.state.get(parameter, {}).items()):
                if isinstance(slot, torch.Tensor) and slot.is_floating_point() and name != "step":
                    yield slot


@final
class _WithinSet:
    """Sums gradients over a process set while the backward pass runs."""

    def __init__(self, model: nn.Module, hvd: Any, process_set: Any) -> None:
        def start_sum(tensor: torch.Tensor, name: str) -> Any:
            return hvd.allreduce_async_(tensor, name=name, op=hvd.Sum, process_set=process_set)

        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._buckets = GradientBuckets(trained, PlainSum(start_sum), hvd.synchronize)
        self.finish, self.clear = self._buckets.finish, self._buckets.clear

    def set_grad_sync(self, last: bool) -> None:
        self._buckets.hold(not last)


class _Average:
    """Some tensors on their way to become their mean over ranks."""

    def __init__(self, hvd: Any, tensors: list[torch.Tensor], name: str) -> None:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self._tensors, self._wait = tensors, hvd.synchronize
        self._flat = flat.to(_WIRE.get(flat.dtype, flat.dtype))
        self._handle = hvd.allreduce_async_(self._flat, name=name, op=hvd.Average)

    def arrive(self) -> None:
        self._wait(self._handle)
        parts = torch.split(self._flat, [tensor.numel() for tensor in self._tensors])
        torch._foreach_copy_(self._tensors, [part.view(t.shape) for part, t in zip(parts, self._tensors, strict=True)])


def _buckets(tensors: Iterator[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Of one dtype and device each, about `BUCKET_BYTES` large."""
    open_ones: defaultdict[Any, list[torch.Tensor]] = defaultdict(list)
    for tensor in tensors:
        bucket = open_ones[tensor.dtype, tensor.device]
        bucket.append(tensor)
        if _bytes(bucket) >= BUCKET_BYTES:
            yield open_ones.pop((tensor.dtype, tensor.device))
    yield from open_ones.values()


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
