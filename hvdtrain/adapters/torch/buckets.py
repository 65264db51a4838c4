"""Buckets: the gradients that travel in one message, and where they are in memory.

Small gradients are views of one flat buffer, into which autograd's are copied. A large one travels as the tensor that
autograd made, where the hook and the device want it so (`HookState.large_bytes`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import torch
from torch import nn

from hvdtrain import activity
from hvdtrain.adapters.sync_state import in_buckets
from hvdtrain.adapters.torch.comm_hooks import CommHook, GradBucket, Handle, PendingReduction, UsageMarks

Trainable = Sequence[tuple[str, nn.Parameter]]
"""Names and parameters."""

Together = Callable[[nn.Parameter], Hashable]
"""Says of a parameter which others may be in its bucket."""


class Bucket(ABC):
    """Gradients of some parameters, and the reduction of them that is under way."""

    def __init__(self, bucket: GradBucket, parameters: Sequence[nn.Parameter], hook: CommHook) -> None:
        self.name, self.parameters = bucket.name, parameters
        if hook.keeps_unused:
            bucket.marks = UsageMarks(hook.mark_places([parameter.numel() for parameter in parameters]))
        self._content, self._keeps_unused = bucket, hook.keeps_unused
        self._begin, self._leaves_all = hook.open(bucket), hook.leaves_all
        self._missing = set(parameters)
        self._reduction: PendingReduction | None = None
        self._handle: Handle = None
        self._is_reduced = False
        self._version = 0

    @property
    def has_begun(self) -> bool:
        return self._reduction is not None

    @property
    def was_changed(self) -> bool:
        """Whether something but the reduction has written into the gradients since that began, or replaced one."""
        return self._version != self._content.flat._version or self._is_replaced()

    @abstractmethod
    def _is_replaced(self) -> bool:
        """Whether a parameter has another gradient than the one that is being reduced."""

    @abstractmethod
    def take(self, parameter: nn.Parameter) -> None:
        """The parameter's `.grad` is there: make it what will be reduced."""

    @abstractmethod
    def complete(self) -> None:
        """Every parameter's `.grad` becomes what is reduced, zeros where there was none; the reduction has begun.

        When it has ended, a parameter that no rank's loss has used has no gradient again.
        """

    def is_full(self, parameter: nn.Parameter) -> bool:
        """Whether all gradients of the last backward pass are there, now that this one is."""
        self._missing.discard(parameter)
        return not self._missing

    def start(self) -> None:
        self._reduction = self._begin()
        self._handle = next(self._reduction)
        self._version = self._content.flat._version

    def is_reduced(self, wait: Callable[[Handle], object]) -> bool:
        """Wait for the pending message, if there is one; returns whether it was the last one."""
        if self._is_reduced:
            return True
        assert self._reduction is not None
        activity.now.collective = self.name
        try:
            self._handle = self._reduction.send(wait(self._handle))
        except StopIteration:
            self._is_reduced = True
            if not self._leaves_all:
                self._drop()
            elif self._content.marks.missing:
                self._forget_unused()
        return self._is_reduced

    def _forget_unused(self) -> None:
        bucket = self._content
        for number in bucket.marks.unused if self._keeps_unused else bucket.frozen():
            self.parameters[number].grad = None

    def reduce(self, wait: Callable[[Handle], object]) -> None:
        while not self.is_reduced(wait):
            pass

    def give_up(self, wait: Callable[[Handle], object]) -> None:
        """Wait for the pending message, if there is one, and send no further one: other ranks may have gone on."""
        if self.has_begun and not self._is_reduced:
            wait(self._handle)

    def _drop(self) -> None:  # noqa: B027
        """Free the memory of gradients that are not in a buffer."""

    def rearm(self) -> None:
        """Expect gradients again, which are added to those that parameters have."""
        self._reduction, self._is_reduced = None, False
        self._content.marks.missing = self._content.marks.unused = ()
        self._missing.update(self.parameters)

    def clear(self) -> None:
        # Without a gradient to add to, autograd leaves its own tensor, which is copied into its place or travels
        # itself: at most half of the memory traffic of zeros that are written, read and added to.
        self.rearm()
        for parameter in self.parameters:
            parameter.grad = None


class SharedBucket(Bucket):
    """Gradients that are views of one buffer."""

    def __init__(self, name: str, trainable: Trainable, hook: CommHook) -> None:
        parameters = [parameter for _, parameter in trainable]
        first = parameters[0]
        flat = torch.zeros(sum(p.numel() for p in parameters), dtype=first.dtype, device=first.device)
        parts = torch.split(flat, [parameter.numel() for parameter in parameters])
        views = [_laid_out_like(parameter, part) for parameter, part in zip(parameters, parts, strict=True)]
        self._views = dict(zip(parameters, views, strict=True))
        names = [name for name, _ in trainable]
        super().__init__(GradBucket(name, flat, list(zip(names, views, strict=True)), trainable), parameters, hook)

    def take(self, parameter: nn.Parameter) -> None:
        gradient, view = parameter.grad, self._views[parameter]
        if gradient is not view and gradient is not None:  # autograd's own tensor: see `clear`
            parameter.grad = view.zero_().add_(gradient) if gradient.is_sparse else view.copy_(gradient)

    def _is_replaced(self) -> bool:
        return any(p.grad is not view for p, view in self._views.items() if p not in self._missing)

    def complete(self) -> None:
        missing = self._fill_missing()
        if not self.has_begun:
            self._content.marks.missing = missing
            self.start()

    def _fill_missing(self) -> list[int]:
        """The numbers of parameters whose gradient was not there."""
        missing = [number for number, (p, view) in enumerate(self._views.items()) if p.grad is not view]
        for number in missing:  # unused, or the task cleared it
            parameter = self.parameters[number]
            view = self._views[parameter]
            parameter.grad = view if self.has_begun else view.fill_(-0.0)
        return missing


class _Single(Bucket):
    """One gradient, where autograd made it, unless that is in another order than on other ranks or is shared."""

    def __init__(self, name: str, trainable: Trainable, hook: CommHook) -> None:
        ((_, self._parameter),) = trainable
        super().__init__(GradBucket(name, self._parameter.new_empty(0), [], trainable), [self._parameter], hook)
        self._order = _order(self._new())
        self._gradient: torch.Tensor | None = None

    def take(self, parameter: nn.Parameter) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        # After each backward pass: autograd would add to memory that two gradients share once for each of them.
        if gradient.is_sparse:
            parameter.grad = self._new().add_(gradient)
        elif _order(gradient) != self._order or _is_shared(gradient):
            parameter.grad = self._new().copy_(gradient)

    def _new(self) -> torch.Tensor:
        """Zeros in the order in which all ranks send this gradient, those too on which autograd made none."""
        return _laid_out_like(self._parameter, self._parameter.new_zeros(self._parameter.numel()))

    def start(self) -> None:
        self._gradient = self._parameter.grad
        if self._gradient is None:
            self._gradient, self._content.marks.missing = self._new().fill_(-0.0), [0]
        self._content.flat = self._gradient.as_strided((self._gradient.numel(),), (1,))
        super().start()

    def _is_replaced(self) -> bool:
        return not self._missing and self._parameter.grad is not self._gradient

    def complete(self) -> None:
        if not self.has_begun:
            self.take(self._parameter)  # the task may have set it
            self.start()
        self._parameter.grad = self._gradient

    def _drop(self) -> None:
        self._parameter.grad = self._gradient = None
        self._content.flat = self._content.flat.new_empty(0)

    def rearm(self) -> None:
        super().rearm()
        self._gradient, self._content.flat = None, self._content.flat.new_empty(0)  # the parameter may have it still

    def clear(self) -> None:
        super().clear()
        self._drop()


def _order(tensor: torch.Tensor) -> list[int]:
    """What decides where its numbers are in memory: strides, but of dimensions of size 1, where they mean nothing."""
    return [stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True) if count > 1]


def _uses(tensor: torch.Tensor) -> int | None:
    """How many tensors and objects of Python use its memory; None where torch does not tell."""
    count: Any = getattr(torch._C, "_storage_Use_Count", None)  # torch has no other way; CUDA graphs use it
    return None if count is None else int(count(tensor.untyped_storage()._cdata))


_USES_ALONE: Final = _uses(torch.empty(1))


def _is_shared(gradient: torch.Tensor) -> bool:
    """Whether another tensor is in that memory: both parameters of `a.view(n) + b.view(n)` get the same gradient."""
    uses = _uses(gradient)
    return uses is None or _USES_ALONE is None or uses > _USES_ALONE


def has_no_gaps(tensor: torch.Tensor) -> bool:
    """Whether its numbers fill the memory from the first to the last, in any order."""
    last = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.numel() == last + 1


def _laid_out_like(parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """`part` in the parameter's own memory layout (channels last, say), or autograd would reorder at every step."""
    return part.as_strided(parameter.shape, parameter.stride()) if has_no_gaps(parameter) else part.view_as(parameter)


def grouped(trainable: Trainable, cap: int, hook: CommHook, together: Together = lambda _: 0) -> list[Trainable]:
    """Parameters from the last to the first, of one dtype and device in each group.

    Args:
        cap: bytes of the largest group of several parameters.
        together: only parameters with equal values of it share a group.
    """
    groups: list[Any] = in_buckets(
        reversed(trainable),
        lambda named: (named[1].dtype, named[1].device, together(named[1])),
        lambda named: named[1].nbytes,
        cap,
        _large_bytes(trainable, hook),
    )
    return groups


def make_buckets(
    trainable: Trainable, hook: CommHook, cap: int, prefix: str = "hvdtrain.gradients", together: Together = lambda _: 0
) -> list[Bucket]:
    """A bucket for each group of `grouped`. Args: `prefix`: begins the names of their collectives."""
    large = _large_bytes(trainable, hook)
    return [
        (_Single if len(group) == 1 and group[0][1].nbytes >= large else SharedBucket)(f"{prefix}.{index}", group, hook)
        for index, group in enumerate(grouped(trainable, cap, hook, together))
    ]


def _large_bytes(trainable: Trainable, hook: CommHook) -> float:
    return hook.large_bytes(on_gpu=any(parameter.is_cuda for _, parameter in trainable))
