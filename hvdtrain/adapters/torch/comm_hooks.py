"""Comm hooks: what is sent for a bucket of gradients, and in how many messages.

Each hook starts its communication in the backward pass, as soon as the bucket's last gradient is ready.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from hvdtrain.adapters.sync_state import HookState


class UsageMarks:
    """Which parameters of a bucket no rank's loss has used in an update: known on all ranks without a further message.

    A rank whose loss has not used a parameter sends -0.0 for all of its numbers; one that has a gradient never sends
    -0.0 for the first one, but 0.0. The sum of x and -0.0 is x, and that of 0.0 and -0.0 is 0.0: the first number of
    the sum is -0.0 only where no rank had a gradient. Only ranks without a gradient have to look at it, so that in all
    other steps nobody waits for the device.

    What rounds may make -0.0 of a small negative number: a rank rounds and multiplies before it puts the marks into
    what it sends, and reads them from the sum as it arrives. A sum is exact where it is near zero; Adasum, which
    multiplies while it adds, is not, for numbers that are the least ones of their dtype.

    Args: `places`: for each parameter where its first number is in the bucket; and where other parts of it begin, if
    each is looked at by itself. Empty: there are no marks.

    Attributes:
        missing: the parameters, by their numbers, that have no gradient on this rank in this update.
        unused: those of them that are missing on all ranks, once `read` has found them.
    """

    def __init__(self, places: Sequence[Sequence[int]] = ()) -> None:
        self._places = places
        self._all: torch.Tensor | None = None
        self._zeros = torch.empty(0)
        self.missing: Sequence[int] = ()
        self.unused: Sequence[int] = ()

    def put_into(self, sent: torch.Tensor) -> None:
        """Mark what is sent, [numbers of the bucket or more], after any rounding and factor."""
        if not self._places or not sent.is_floating_point():
            return
        if self._all is None or self._zeros.dtype != sent.dtype:
            self._all = torch.tensor([place for places in self._places for place in places], device=sent.device)
            self._zeros = sent.new_zeros(len(self._all))
        if len(self._all):
            sent.index_add_(0, self._all, self._zeros)
        for number in self.missing:
            for place in self._places[number]:
                sent[place] = -0.0

    def read(self, summed: torch.Tensor) -> None:
        """Find out what is `unused`, given the sums, [numbers or more], before any rounding and factor."""
        self.unused = ()
        missing = self.missing if self._places else ()
        firsts = [(number, self._places[number][0]) for number in missing if self._places[number]]
        if firsts and summed.is_floating_point():
            values = summed[[place for _, place in firsts]].tolist()
            self.unused = [number for (number, _), value in zip(firsts, values, strict=True) if is_mark(value)]


def is_mark(value: float) -> bool:
    """Whether a sum is -0.0."""
    return value == 0 and math.copysign(1, value) < 0


Handle = Any
"""Of a collective that runs in the background."""

StartSum = Callable[[torch.Tensor, str], Handle]
"""Starts an in-place sum of a flat tensor over ranks under a name."""

PendingReduction = Generator[Handle, Any, None]
"""Yields a handle whenever it must wait; is sent what waiting for it returned. At its end the bucket is reduced."""


@dataclass
class GradBucket:
    """Gradients that are reduced together."""

    name: str  # begins the names of its collectives; the same on every rank
    # of shape [numbers], which the reduction changes in place. Another one in each update for a gradient that is a
    # bucket by itself, where the hook `reduces_in_place`; such a bucket has no `views`.
    flat: torch.Tensor
    # each parameter's name and gradient, consecutive parts of `flat` in any memory layout without gaps
    views: list[tuple[str, torch.Tensor]]
    # names and parameters, in the order of `flat`, and of the same memory layout
    members: Sequence[tuple[str, nn.Parameter]] = ()
    marks: UsageMarks = field(default_factory=UsageMarks)  # to be put into what is sent

    def frozen(self) -> list[int]:
        """The members, by their numbers, that have no gradient in this update because user code has frozen them."""
        return [number for number in self.marks.missing if not self.members[number][1].requires_grad]


class CommHook(HookState, ABC):
    """How the gradients of a bucket are reduced over ranks.

    Attributes:
        leaves_all: the reduced gradients are in the bucket's memory; else that is not needed after the reduction.
        keeps_unused: a parameter that no rank's loss has used has no gradient after the reduction; else it has zeros,
            or what the hook has kept of earlier updates.
        in_order: the reductions of buckets begin in their order, the same on all ranks.
        some_joined: some ranks may have called `hvd.join()`, and take part in allreduces only.
    """

    in_order = False
    some_joined = False
    leaves_all = True
    keeps_unused = True
    fixed_by = ""

    def mark_places(self, lengths: Sequence[int]) -> list[list[int]]:
        """Say where the marks of each parameter of a bucket are, given how many numbers each of them has."""
        starts = accumulate(lengths, initial=0)
        return [[start] if length else [] for start, length in zip(starts, lengths, strict=False)]

    @abstractmethod
    def open(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        """Called once a bucket, at the start; what it returns begins a reduction in each update.

        A reduction begins in the backward pass, as soon as the bucket's last gradient is ready, and continues after it.
        All ranks begin the same reductions, but not in the same order.
        """


class PlainSum(CommHook):
    """Gradients as they are, summed in place by one allreduce a bucket."""

    reduces_in_place = True

    def __init__(self, start_sum: StartSum, loss_multiplier: float = 1.0, keeps_unused: bool = True) -> None:
        super().__init__(loss_multiplier)
        self._start_sum, self.keeps_unused = start_sum, keeps_unused

    def open(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        return lambda: self._summed(bucket.flat, bucket)

    def _summed(self, sent: torch.Tensor, bucket: GradBucket) -> PendingReduction:
        """Add up in place what is sent for a bucket."""
        bucket.marks.put_into(sent)
        yield self._start_sum(sent, bucket.name)
        bucket.marks.read(sent)


class Float16Sum(PlainSum):
    """Gradients sent as float16, half of the bytes, 11 bits a number, a narrow range.

    Each rank sends its part of the mean over the global batch, whatever the loss multiplier, so that only a mean beyond
    65,504 overflows. Then the sum is infinite, or not a number, on all ranks alike: --precision fp16 skips that update
    and lowers its loss scale, and without it training ends at the loss that follows. Parts below 6e-8 become 0.

    Args: `loss_multiplier`: see `HookState`; a power of two loses nothing.
    """

    reduces_in_place = False

    def open(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        flat = bucket.flat
        if flat.element_size() <= 2:
            return super().open(bucket)
        sent = torch.empty_like(flat, dtype=torch.float16)

        def reduction() -> PendingReduction:
            sent.copy_(scaled(flat, 1 / self.loss_multiplier))
            yield from self._summed(sent, bucket)
            scaled(flat.copy_(sent), self.loss_multiplier)

        return reduction


def scaled(flat: torch.Tensor, factor: float) -> torch.Tensor:
    """The tensor, multiplied in place."""
    return flat if factor == 1 else flat.mul_(factor)


class BFloat16Sum(PlainSum):
    """Gradients sent as bfloat16, half of the bytes, 8 bits a number, float32's whole range.

    Horovod 0.28.1 cannot add bfloat16, and a ring that could would round every partial sum. So each rank adds up one
    part of the numbers, in float32, and rounds once: an alltoall brings it all ranks' values of its part, an allgather
    distributes the sums. Together they send as much as a ring allreduce of bfloat16 would. All ranks end with the same
    bits, since each number was added up in one place.
    """

    reduces_in_place = False

    def __init__(self, hvd: Any, start_sum: StartSum, loss_multiplier: float) -> None:
        super().__init__(start_sum, loss_multiplier)
        self._hvd = hvd

    def open(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        flat, ranks = bucket.flat, self._hvd.size()
        if flat.dtype == torch.float16:
            return super().open(bucket)
        numbers = flat.numel()
        part = -(-numbers // ranks)
        sent = torch.zeros(ranks * part, dtype=torch.bfloat16, device=flat.device)  # zeros past the end remain

        def reduction() -> PendingReduction:
            sent[:numbers].copy_(flat)
            bucket.marks.put_into(sent)
            received, _ = yield self._hvd.alltoall_async(_bits(sent), name=f"{bucket.name}.parts")
            total = _sum(received.view(torch.bfloat16).view(ranks, part))
            sums = yield self._hvd.allgather_async(_bits(total.to(torch.bfloat16)), name=f"{bucket.name}.sums")
            flat.copy_(sums.view(torch.bfloat16)[:numbers])
            bucket.marks.read(flat)

        return reduction


def _sum(rows: torch.Tensor) -> torch.Tensor:
    """Add up the rows in float32. `Tensor.sum` begins with 0.0, and would lose marks."""
    first, *others = rows.unbind()
    total = first.float()
    for row in others:
        total += row
    return total


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor as a dtype that Horovod can send."""
    return tensor.view(torch.int16)


class Adasum(CommHook):
    """Gradients combined parameter by parameter (Maleki et al. 2020, arXiv:2006.02924).

    For gradients a and b of one parameter, (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b: equal ones do not change,
    orthogonal ones are added. Each rank contributes its own mean gradient.
    """

    takes_own_means = True

    def __init__(self, hvd: Any) -> None:
        super().__init__(loss_multiplier=hvd.size())
        self._hvd = hvd

    def open(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        # Horovod weighs each tensor of a group separately, in one message.
        numbers = [view.numel() for _, view in bucket.views]
        parts = [part for part in torch.split(bucket.flat, numbers) if part.numel()]

        def reduction() -> PendingReduction:
            bucket.marks.put_into(bucket.flat)
            yield self._hvd.grouped_allreduce_async_(parts, name=bucket.name, op=self._hvd.Adasum)
            bucket.marks.read(bucket.flat)

        return reduction
