"""How gradients of several ranks become one: Horovod's operation, factors and compression, over a set of ranks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from horovod.torch import mpi_ops
from horovod.torch.compression import Compression
from torch import nn

from hvdtrain.adapters.torch.comm_hooks import CommHook, GradBucket, Handle, PendingReduction, scaled
from hvdtrain.torch.collectives import bounded, submitted

_begin = submitted(mpi_ops.allreduce_async_)


@dataclass(frozen=True)
class Reduction:
    """The arguments of `hvd.DistributedOptimizer` that say what is computed."""

    op: Any = mpi_ops.Average
    process_set: Any = mpi_ops.global_process_set
    predivide: float = 1.0  # before the sum by this, after it by size / this; with Average only
    compression: Any = Compression.none
    sparse_as_dense: bool = False

    @property
    def is_sum(self) -> bool:
        """Whether adding nothing leaves the other ranks' result as it is."""
        return self.op in (mpi_ops.Average, mpi_ops.Sum)

    def start(self, flat: torch.Tensor, name: str) -> Handle:
        """Begin to reduce in place."""
        before, after = (1 / self.predivide, self.predivide) if self.op == mpi_ops.Average else (1.0, 1.0)
        numbers = torch.view_as_real(flat) if flat.is_complex() and self.is_sum else flat
        return _begin(
            numbers, name=name, op=self.op, prescale_factor=before, postscale_factor=after, process_set=self.process_set
        )

    def start_sum(self, flat: torch.Tensor, name: str) -> Handle:
        """Begin to add up in place."""
        return _begin(flat, name=name, op=mpi_ops.Sum, process_set=self.process_set)

    def reduced(self, sent: torch.Tensor, bucket: GradBucket) -> PendingReduction:
        """Reduce in place what is sent for a bucket.

        Where there are marks, Horovod adds up, and the factors of a mean are multiplied outside of the sum: Horovod
        would round small negative numbers to -0.0 by them, which is the mark of a parameter that no rank has used.
        """
        if not (self.is_sum and sent.is_floating_point()):
            yield self.start(sent, bucket.name)
            return
        is_mean = self.op == mpi_ops.Average
        scaled(sent, 1 / self.predivide if is_mean else 1.0)
        bucket.marks.put_into(sent)
        yield self.start_sum(sent, bucket.name)
        bucket.marks.read(sent)
        scaled(sent, self.predivide / self.process_set.size() if is_mean else 1.0)

    def hook(self) -> CommHook:
        """What is sent for a bucket."""
        if self.compression is Compression.none:
            return DenseReduction(self)
        return CompressedReduction(self)

    def sparse(self, parameter: nn.Parameter, name: str) -> Callable[[], torch.Tensor]:
        """Begin to gather the rows of a sparse gradient; what it returns waits for the sparse result."""
        gradient = parameter.grad
        if gradient is None:
            none = torch.empty((1, 0), dtype=torch.int64, device=parameter.device)
            gradient = torch.sparse_coo_tensor(none, parameter.detach()[:0], parameter.shape)
        rows = gradient.coalesce()
        known = rows.float() if rows.dtype == torch.bfloat16 else rows  # which Horovod cannot gather
        wait = bounded(mpi_ops.sparse_allreduce_async(known, name, self.op, self.process_set), name)
        return lambda: wait().to(rows.dtype)


class DenseReduction(CommHook):
    """Buckets as they are, reduced in place.

    Horovod 0.28.1 cannot add bfloat16, which is sent as float32: so process sets, and ranks that have called
    `hvd.join()`, are possible as for other dtypes. (`BFloat16Sum`, of half the bytes, needs all ranks.)
    """

    reduces_in_place = True

    def __init__(self, reduction: Reduction) -> None:
        super().__init__()
        self._rule, self.keeps_unused = reduction, reduction.is_sum

    def open(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        if bucket.flat.dtype != torch.bfloat16 or not self._rule.is_sum:
            return lambda: self._rule.reduced(bucket.flat, bucket)

        def reduction() -> PendingReduction:
            sent = bucket.flat.float()
            yield from self._rule.reduced(sent, bucket)
            bucket.flat.copy_(sent)

        return reduction


class CompressedReduction(CommHook):
    """What `Compression`, or a compressor of the user's, makes of a bucket's numbers."""

    def __init__(self, reduction: Reduction) -> None:
        super().__init__()
        self._rule, self.keeps_unused = reduction, reduction.is_sum

    def open(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        compression = self._rule.compression

        def reduction() -> PendingReduction:
            sent, context = compression.compress(bucket.flat)
            yield from self._rule.reduced(sent, bucket)
            bucket.flat.copy_(compression.decompress(sent, context))

        return reduction
