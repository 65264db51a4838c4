"""Gradients of virtual workers in torch, summed in one order whatever number of workers there is (`summation_tree`).

A worker adds up those of its own virtual workers, bucket by bucket, as far as the tree lets it. Then each worker owns
a slice of the bucket: an alltoall brings it all workers' sums of that slice, it adds them up in the order of the tree,
and an allgather distributes the result. Where the number of workers is a power of two, these are a ring's bytes. Where
an allreduce has the same bits (`tree_exchange`), it is used instead: in place, and in the memory of one host over Gloo.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn

from hvdtrain.adapters.choose_sync import ChosenSync
from hvdtrain.adapters.torch.buckets import Bucket, SharedBucket, Trainable, grouped, make_buckets
from hvdtrain.adapters.torch.checksum import checksum
from hvdtrain.adapters.torch.comm_hooks import CommHook, GradBucket, PendingReduction, StartSum
from hvdtrain.adapters.torch.gradient_sync import SummedGradients, start_sum_over
from hvdtrain.adapters.tree_exchange import all_parts, allreduce_follows_tree, slice_lengths
from hvdtrain.algorithms.summation_tree import TreeSum, sum_of_subtrees
from hvdtrain.comm.communicator import transport
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
        follows_tree = allreduce_follows_tree(workers, _adds_in_order(hvd, workers))
        self._by_allreduce = sent_as is None and follows_tree
        self.reduces_in_place = self._by_allreduce and workers.count == workers.size
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
        if self._hvd is None:
            return self._in_place(bucket, lambda _total, _name: None)
        if self._by_allreduce and bucket.flat.element_size() > 2:  # else sums are rounded in other ways
            return self._in_place(bucket, start_sum_over(None))
        return self._by_slices(bucket)

    def _in_place(self, bucket: GradBucket, start_sum: StartSum) -> Callable[[], PendingReduction]:
        def reduction() -> PendingReduction:
            (total,) = self._own_sums(bucket)
            yield start_sum(total, bucket.name)
            bucket.marks.read(total)
            if total is not bucket.flat:
                bucket.flat.copy_(total)

        return reduction

    def _by_slices(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        hvd, workers = self._hvd, self._workers
        parts = all_parts(workers)
        kept = bucket.flat.new_empty(0, dtype=self._sent_as)  # memory for several sums

        def reduction() -> PendingReduction:
            lengths = slice_lengths(bucket.flat.numel(), workers.size)
            sums = self._own_sums(bucket)
            sent = sums[0] if len(sums) == 1 else _slice_by_slice(sums, lengths, kept)
            splits = torch.tensor([len(sums) * length for length in lengths], dtype=torch.int32)
            received, _ = yield hvd.alltoall_async(_bits(sent), splits, name=f"{bucket.name}.parts")
            rows = received.view(sent.dtype).view(len(parts), lengths[workers.rank]).unbind()
            own = sum_of_subtrees(zip(parts, rows, strict=True), workers.count, torch.Tensor.add_)
            totals = yield hvd.allgather_async(_bits(own), name=f"{bucket.name}.sums")
            bucket.marks.read(totals.view(sent.dtype))
            bucket.flat.copy_(totals.view(sent.dtype))

        return reduction

    def _own_sums(self, bucket: GradBucket) -> list[torch.Tensor]:
        """Of this worker's subtrees, with the gradients of its last virtual worker, which are in the bucket."""
        parts = self.add(bucket).parts
        del self._trees[bucket.name]
        return [total for _, total in parts]


def _slice_by_slice(sums: Sequence[torch.Tensor], lengths: list[int], out: torch.Tensor) -> torch.Tensor:
    """In `out`: the first slice of each sum, then the second one of each, and so on, [numbers]."""
    slices = zip(*(torch.split(each, lengths) for each in sums), strict=True)
    out.resize_(sum(each.numel() for each in sums))
    return torch.cat([part for same in slices for part in same], out=out)


def _adds_in_order(hvd: Any, workers: VirtualWorkers) -> bool:
    """Whether an allreduce of gradients adds in the order of ranks. That of MPI and NCCL depends on the size."""
    return workers.gloo_adds_in_order and transport(hvd, torch.cuda.is_available()) == "gloo"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """A view in a dtype that Horovod can send."""
    return tensor.view(torch.int16) if tensor.element_size() == 2 else tensor


TAKES_GRADIENTS: Final = "takes_gradients"
"""An attribute of the hook that takes a parameter's gradient: what hooks do before it, a repeated pass does too."""


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

    def __init__(self, trainable: Trainable, chosen: ChosenSync, workers: VirtualWorkers) -> None:
        hvd = _horovod(workers)
        wait = (lambda handle: handle) if hvd is None else hvd.synchronize
        self._own, self._begun, self.notes = workers.own, 0, {}
        super().__init__(trainable, TreeReduction(hvd, workers, _SENT_AS[chosen.hook]), wait, chosen.bucket_bytes)

    def _cut(self) -> list[Bucket]:
        if self._hook.reduces_in_place:
            return make_buckets(self._trainable, self._hook, self._cap)
        groups = grouped(self._trainable, self._cap, self._hook)
        return [WorkersBucket(f"hvdtrain.gradients.{i}", group, self._hook) for i, group in enumerate(groups)]

    def set_grad_sync(self, last: bool) -> None:
        if self._begun:
            for bucket in self._buckets:
                assert isinstance(bucket, WorkersBucket)
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

        setattr(hook, TAKES_GRADIENTS, True)
        return hook
