"""Local SGD in torch: ranks update with their own or their process set's gradients, and average weights at intervals.

Stich 2019 (arXiv:1805.09767); with momentum buffers averaged too, Yu, Jin and Yang 2019 (arXiv:1905.03817); with sets,
Lin et al. 2020 (arXiv:1808.07217, "hierarchical local SGD").
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from hvdtrain.adapters.choose_sync import BUCKET_BYTES, ChosenSync
from hvdtrain.adapters.sync_state import PeriodicAverage, in_buckets
from hvdtrain.adapters.torch.buckets import Trainable
from hvdtrain.adapters.torch.comm_hooks import PlainSum
from hvdtrain.adapters.torch.gradient_sync import GradientSync, NoSync, SummedGradients, start_sum_over, trainable_of

_PENDING = 8  # buckets at a time: limits the memory for copies
_SENT_AS = {torch.bfloat16: torch.float32, torch.float16: torch.float32}  # no bfloat16 in Horovod; float16 would round


class LocalSgd(PeriodicAverage, GradientSync):
    """Each rank's samples count as if there were no ranks outside its process set.

    A parameter that a rank's loss has not used has zeros for its gradient: others may have used it, and slots that are
    averaged must exist on all ranks.

    With equal slices a rank's gradient is the mean over the set's samples. After an update with SGD, with or without
    momentum, the mean of all ranks' weights is what synchronous training would have computed from the same weights:
    with `sync_every` 1 they are equal, whatever the slices' sizes.

    Args: `optimizer`: its float slots are averaged too, except for counts of steps, which are equal anyway.
    """

    acts_after_update = True

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, chosen: ChosenSync) -> None:
        import horovod.torch as hvd

        super().__init__(chosen, self._average_all)
        self._hvd: Any = hvd
        self._model, self._optimizer = model, optimizer
        trainable = trainable_of(model)
        self._ever_trained = {parameter: None for _, parameter in trainable}
        if chosen.ranks == 1:
            self._gradients: GradientSync = NoSync(trainable, fills_unused=True)
        else:
            hook = PlainSum(start_sum_over(chosen.process_set), keeps_unused=False)
            self._gradients = SummedGradients(trainable, hook, hvd.synchronize)

    def set_trainable(self, trainable: Trainable) -> None:
        self._ever_trained |= {parameter: None for _, parameter in trainable}
        self._gradients.set_trainable(trainable)

    def set_grad_sync(self, last: bool) -> None:
        self._gradients.set_grad_sync(last)

    def finish(self) -> None:
        self._gradients.finish()

    def clear(self) -> None:
        self._gradients.clear()

    def _average_all(self) -> None:
        pending: deque[_Average] = deque()
        for number, tensors in enumerate(_buckets(self._averaged())):
            pending.append(_Average(self._hvd, tensors, f"hvdtrain.weights.{number}"))
            if len(pending) == _PENDING:
                pending.popleft().finish()
        for average in pending:
            average.finish()

    def _averaged(self) -> Iterator[torch.Tensor]:
        """Yield tensors in one order on all ranks: each has a gradient for every parameter, and so the same slots.
        Layers that user code has frozen since the last average still differ between ranks, so they are averaged, too.
        """
        trained = [p for p in self._model.parameters() if p.requires_grad or p in self._ever_trained]
        yield from (parameter.detach() for parameter in trained)
        for parameter in trained:
            for name, slot in sorted(self._optimizer.state.get(parameter, {}).items()):
                if isinstance(slot, torch.Tensor) and slot.is_floating_point() and name != "step":
                    yield slot


class _Average:
    """A pending mean of some tensors over ranks."""

    def __init__(self, hvd: Any, tensors: list[torch.Tensor], name: str) -> None:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self._tensors, self._wait = tensors, hvd.synchronize
        self._flat = flat.to(_SENT_AS.get(flat.dtype, flat.dtype))
        self._handle = hvd.allreduce_async_(self._flat, name=name, op=hvd.Average)

    def finish(self) -> None:
        self._wait(self._handle)
        parts = torch.split(self._flat, [tensor.numel() for tensor in self._tensors])
        torch._foreach_copy_(self._tensors, [part.view(t.shape) for part, t in zip(parts, self._tensors, strict=True)])


def _buckets(tensors: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Cut tensors into buckets of one dtype and device each."""
    return in_buckets(tensors, lambda t: (t.dtype, t.device), lambda t: t.nbytes, BUCKET_BYTES)
