"""Gradients of virtual workers in torch, summed in one order whatever number of workers there is (`summation_tree`).

A worker adds up those of its own virtual workers, bucket by bucket, as far as the tree lets it. Then each worker owns
a slice of the bucket: an alltoall brings it all workers' sums of that slice, it adds them up in the order of the tree,
and an allgather distributes the result. Where the number of workers is a power of two, these are a ring's bytes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hvdtrain.adapters.choose_sync import ChosenSync
from hvdtrain.adapters.torch.buckets import Bucket, SharedBucket, Trainable, grouped
from hvdtrain.adapters.torch.checksum import checksum
from hvdtrain.adapters.torch.comm_hooks import CommHook, GradBucket, PendingReduction
from hvdtrain.adapters.torch.gradient_sync import SummedGradients
from hvdtrain.algorithms.summation_tree import TreeSum, subtrees, sum_of_subtrees
from hvdtrain.topology.virtual_workers import VirtualWorkers

_SENT_AS = {"plain": None, "fp16": torch.float16, "bf16": torch.bfloat16}


class TreeReduction(CommHook):
    """Sums buckets along the tree.

    Compressed gradients are rounded before they are added, and after each addition: which sums are sent depends on the
    number of workers, and what is rounded must not.

    Args:
        hvd: Horovod's module; None: this is the only worker.
        sent_as: a dtype of 16 bits, or None for the gradients' own.
    """

    def __init__(self, hvd: Any, workers: VirtualWorkers, sent_as: torch.dtype | None) -> None:
        super().__init__()
        self._hvd, self._workers, self._sent_as = hvd, workers, sent_as
        self._trees: dict[str, TreeSum[torch.Tensor]] = {}

    def add(self, bucket: GradBucket) -> TreeSum[torch.Tensor]:
        """The next virtual worker's gradients are in the bucket, which may be overwritten now unless it is the last
        one of this worker. Returns the sums so far."""
        own, tree = self._workers.own, self._trees.get(bucket.name)
        if tree is None:
            tree = self._trees[bucket.name] = TreeSum(self._workers.count, torch.Tensor.add_)
        number = tree.parts[-1][0].stop if tree.parts else own.start
        gradients = bucket.flat if self._sent_as is None else bucket.flat.to(self._sent_as)
        bucket.marks.put_into(gradients)
        tree.push(range(number, number + 1), gradients)
        numbers, newest = tree.parts[-1]
        if newest is bucket.flat and number + 1 < own.stop:
            tree.parts[-1] = numbers, newest.clone()
        return tree

    def open(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        return self._alone(bucket) if self._hvd is None else self._among_workers(bucket)

    def _alone(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        def reduction() -> PendingReduction:
            ((_, total),) = self.add(bucket).parts
            del self._trees[bucket.name]
            yield None
            if total is not bucket.flat:
                bucket.flat.copy_(total)

        return reduction

    def _among_workers(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        flat, workers = bucket.flat, self._workers
        slice_length = max(1, -(-flat.numel() // workers.size))
        sent_parts = len(subtrees(workers.own, workers.count))
        sent = torch.zeros(
            workers.size, sent_parts, slice_length, dtype=self._sent_as or flat.dtype, device=flat.device
        )  # zeros past the end remain
        terms = [part for rank in range(workers.size) for part in subtrees(workers.of_rank(rank), workers.count)]

        def reduction() -> PendingReduction:
            for place, (_, total) in enumerate(self.add(bucket).parts):
                _fill(sent[:, place], total)
            del self._trees[bucket.name]
            received, _ = yield self._hvd.alltoall_async(_bits(sent.view(-1)), name=f"{bucket.name}.parts")
            parts = received.view(sent.dtype).view(len(terms), slice_length).unbind()
            own = sum_of_subtrees(zip(terms, parts, strict=True), workers.count, torch.Tensor.add_)
            sums = yield self._hvd.allgather_async(_bits(own), name=f"{bucket.name}.sums")
            flat.copy_(sums.view(sent.dtype)[: flat.numel()])

        return reduction


def _fill(slices: torch.Tensor, values: torch.Tensor) -> None:
    """Cut `values` [numbers] into the rows of `slices` [workers, numbers of a slice]; what is left stays as it is."""
    whole, rest = divmod(values.numel(), slices.shape[1])
    slices[:whole].copy_(values[: values.numel() - rest].view(whole, -1))
    if rest:
        slices[whole, :rest].copy_(values[-rest:])


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """A view in a dtype that Horovod can send."""
    return tensor.view(torch.int16) if tensor.element_size() == 2 else tensor


def _horovod(workers: VirtualWorkers) -> Any:
    """Its module; None where this is the only worker."""
    if workers.size == 1:
        return None
    import horovod.torch

    return horovod.torch


class WorkersBucket(SharedBucket):
    """Gradients of several virtual workers, one after the other in the same memory."""

    def __init__(self, name: str, trainable: Trainable, hook: TreeReduction) -> None:
        super().__init__(name, trainable, hook)
        self._tree = hook

    def end_worker(self) -> None:
        """A virtual worker's backward pass has ended, and another one's follows."""
        self._content.marks.missing = self._fill_missing()
        self._tree.add(self._content)
        self.clear()


class WorkersGradients(SummedGradients):
    """Sums the gradients of all virtual workers. Each micro batch is that of one of them.

    Attributes:
        notes: virtual workers whose gradients are to be noted → checksums of these.
    """

    notes: dict[int, dict[nn.Parameter, torch.Tensor]]
    _hook: TreeReduction
    _buckets: list[WorkersBucket]  # type: ignore[assignment]

    def __init__(self, trainable: Trainable, chosen: ChosenSync, workers: VirtualWorkers) -> None:
        hvd = _horovod(workers)
        wait = (lambda handle: handle) if hvd is None else hvd.synchronize
        self._own, self._begun, self.notes = workers.own, 0, {}
        super().__init__(trainable, TreeReduction(hvd, workers, _SENT_AS[chosen.hook]), wait, chosen.bucket_bytes)

    def _cut(self) -> list[WorkersBucket]:  # type: ignore[override]
        groups = grouped(self._trainable, self._cap, self._hook)
        return [WorkersBucket(f"hvdtrain.gradients.{i}", group, self._hook) for i, group in enumerate(groups)]

    def set_grad_sync(self, last: bool) -> None:
        if self._begun:
            for bucket in self._buckets:
                bucket.end_worker()
        self._begun += 1
        super().set_grad_sync(last)

    def clear(self) -> None:
        self._begun = 0
        super().clear()

    def _on_gradient(self, bucket: Bucket) -> Callable[[nn.Parameter], None]:
        take = super()._on_gradient(bucket)

        def hook(parameter: nn.Parameter) -> None:
            notes = self.notes.get(self._own[self._begun - 1])
            if notes is not None:
                notes[parameter] = checksum(parameter.grad)
            take(parameter)

        return hook
