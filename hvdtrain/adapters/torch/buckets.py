"""Gradients summed over ranks while the backward pass still runs.

Gradients are views of a few large flat buffers ("buckets"). Communication of a bucket starts in the background when its
last gradient is ready: no copies in and out, few and large messages. The comm hook says what is sent.
The same idea as PyTorch DDP's gradient buckets (Li et al., VLDB 2020) with `gradient_as_bucket_view`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

import torch

from hvdtrain.adapters.gradient_sync import BUCKET_BYTES, in_buckets
from hvdtrain.adapters.torch.comm_hooks import CommHook, GradBucket, Handle, PendingReduction
from hvdtrain.errors import UsageError

_Named = Sequence[tuple[str, torch.nn.Parameter]]


@dataclass
class _Bucket:
    bucket: GradBucket
    views: list[tuple[torch.nn.Parameter, torch.Tensor]]
    begin: Callable[[], PendingReduction]
    missing: set[torch.nn.Parameter] = field(default_factory=set)
    reduction: PendingReduction | None = None
    handle: Handle = None

    def start(self) -> None:
        self.reduction = self.begin()
        self.handle = next(self.reduction)

    def is_reduced(self, wait: Callable[[Handle], object]) -> bool:
        """Wait for the pending message; returns whether it was the last one."""
        assert self.reduction is not None
        try:
            self.handle = self.reduction.send(wait(self.handle))
        except StopIteration:
            return True
        return False


@final
class GradientBuckets:
    """Owns the `.grad` of all parameters.

    Call `finish` after `backward` and before the optimizer's step, and `clear` after it.

    Args:
        parameters: (name, parameter) pairs in the order of the model; gradients appear roughly in reverse.
        hook: how each bucket is reduced.
        wait: waits for a handle of the hook, and returns what the hook is sent.
        bucket_bytes: the largest bucket of several gradients.
    """

    def __init__(
        self,
        parameters: _Named,
        hook: CommHook,
        wait: Callable[[Handle], object],
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._wait = wait
        self._held = False
        self._buckets = _make_buckets(parameters, hook, bucket_bytes)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._on_gradient(bucket, view))  # type: ignore[no-untyped-call]
            for bucket in self._buckets
            for parameter, view in bucket.views
        ]
        self.clear()

    def hold(self, held: bool) -> None:
        """While held, backward passes add to the gradients and start no communication: others follow in this step."""
        self._held = held

    def finish(self) -> None:
        """Wait until all buckets are reduced over ranks.

        A bucket some of whose parameters took no part in the loss (on this rank, in this step) is reduced too,
        with zeros in their places, so that all ranks run the same collectives.
        """
        for bucket in self._buckets:
            for parameter, view in bucket.views:
                if parameter.grad is not view:  # None: the task cleared it, and then the loss did not need it
                    parameter.grad = view
            if bucket.reduction is None:
                bucket.start()
        pending = self._buckets
        while pending:  # the second messages of all buckets start before one of them is waited for
            pending = [bucket for bucket in pending if not bucket.is_reduced(self._wait)]

    def clear(self) -> None:
        """Zero all gradients and prepare the next step."""
        for bucket in self._buckets:
            bucket.bucket.flat.zero_()
            bucket.reduction = None
            bucket.missing = {parameter for parameter, _ in bucket.views}
            for parameter, view in bucket.views:
                if parameter.grad is not view:
                    parameter.grad = view

    def _on_gradient(self, bucket: _Bucket, view: torch.Tensor) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            if bucket.reduction is not None:
                raise _too_late(bucket.bucket.name)
            if parameter.grad is not view and parameter.grad is not None:
                # Autograd replaced the tensor (a changed memory layout, or the task's own zero_grad): take it back.
                view.copy_(parameter.grad)
                parameter.grad = view
            if self._held:
                return
            bucket.missing.discard(parameter)
            if not bucket.missing:
                bucket.start()

        return hook


def _too_late(name: str) -> UsageError:
    return UsageError(
        f"A gradient of {name} arrived after the sum over ranks had begun.",
        "The model adds to it several times in one backward pass, and only the first part would be summed.",
        "use torch.utils.checkpoint with use_reentrant=False, and call backward only through hvdtrain.",
    )


def _make_buckets(parameters: _Named, hook: CommHook, bucket_bytes: int) -> list[_Bucket]:
    """Parameters from the last to the first, of one dtype and device in each bucket."""
    groups = in_buckets(
        reversed(parameters),
        lambda named: (named[1].dtype, named[1].device),
        lambda named: named[1].numel() * named[1].element_size(),
        bucket_bytes,
    )
    return [_bucket(f"hvdtrain.gradients.{index}", group, hook) for index, group in enumerate(groups)]


def _bucket(name: str, parameters: _Named, hook: CommHook) -> _Bucket:
    first = parameters[0][1]
    flat = torch.zeros(sum(p.numel() for _, p in parameters), dtype=first.dtype, device=first.device)
    views, named, offset = [], [], 0
    for parameter_name, parameter in parameters:
        view = _laid_out_like(parameter, flat[offset : offset + parameter.numel()])
        views.append((parameter, view))
        named.append((parameter_name, view))
        offset += parameter.numel()
    bucket = GradBucket(name, flat, named)
    return _Bucket(bucket, views, hook.open(bucket))


def _laid_out_like(parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """`part` in the parameter's own memory layout (channels last, say), or autograd would reorder at every step."""
    last = sum((count - 1) * stride for count, stride in zip(parameter.shape, parameter.stride(), strict=True))
    if parameter.numel() == last + 1:  # no gaps
        return part.as_strided(parameter.shape, parameter.stride())
    return part.view_as(parameter)
