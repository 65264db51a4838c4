"""Gradients summed over ranks while the backward pass still runs.

Gradients are views of a few large flat buffers ("buckets"). When the last gradient of a bucket is there, one
in-place allreduce of the whole buffer starts in the background: no copies in and out, few and large messages.
The same idea as PyTorch DDP's gradient buckets (Li et al., VLDB 2020) with `gradient_as_bucket_view`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch

from hvdtrain.errors import UsageError

BUCKET_BYTES = 25 * 2**20  # PyTorch DDP's default


@dataclass
class _Bucket:
    name: str
    flat: torch.Tensor
    views: list[tuple[torch.nn.Parameter, torch.Tensor]]
    missing: set[torch.nn.Parameter] = field(default_factory=set)
    handle: Any = None


@final
class GradientBuckets:
    """Owns the `.grad` of all parameters.

    Call `finish` after `backward` and before the optimizer's step, and `clear` after it.

    Args:
        parameters: (name, parameter) pairs in the order of the model; gradients appear roughly in reverse.
        start_sum: begins an in-place sum of a flat tensor over ranks under a name; returns a handle.
        wait: waits for a handle.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, torch.nn.Parameter]],
        start_sum: Callable[[torch.Tensor, str], Any],
        wait: Callable[[Any], object],
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._start_sum = start_sum
        self._wait = wait
        self._buckets = _make_buckets(parameters, bucket_bytes)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._on_gradient(bucket, view))  # type: ignore[no-untyped-call]
            for bucket in self._buckets
            for parameter, view in bucket.views
        ]
        self.clear()

    def finish(self) -> float:
        """Wait until all buckets hold the sum over ranks; returns the seconds this took.

        A bucket some of whose parameters took no part in the loss (on this rank, in this step) is reduced too,
        with zeros in their places, so that all ranks run the same collectives.
        """
        begin = time.perf_counter()
        for bucket in self._buckets:
            for parameter, view in bucket.views:
                if parameter.grad is not view:  # None: the task cleared it, and then the loss did not need it
                    parameter.grad = view
            if bucket.handle is None:
                bucket.handle = self._start_sum(bucket.flat, bucket.name)
        for bucket in self._buckets:
            self._wait(bucket.handle)
        return time.perf_counter() - begin

    def clear(self) -> None:
        """Zero all gradients and make ready for the next step."""
        for bucket in self._buckets:
            bucket.flat.zero_()
            bucket.handle = None
            bucket.missing = {parameter for parameter, _ in bucket.views}
            for parameter, view in bucket.views:
                if parameter.grad is not view:
                    parameter.grad = view

    def _on_gradient(self, bucket: _Bucket, view: torch.Tensor) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            if bucket.handle is not None:
                raise _too_late(bucket.name)
            if parameter.grad is not view and parameter.grad is not None:
                # Autograd replaced the tensor (a changed memory layout, or the task's own zero_grad): take it back.
                view.copy_(parameter.grad)
                parameter.grad = view
            bucket.missing.discard(parameter)
            if not bucket.missing:
                bucket.handle = self._start_sum(bucket.flat, bucket.name)

        return hook


def _too_late(name: str) -> UsageError:
    return UsageError(
        f"A gradient of {name} arrived after the sum over ranks had begun.",
        "The model adds to it several times in one backward pass, and only the first part would be summed.",
        "use torch.utils.checkpoint with use_reentrant=False, and call backward only through hvdtrain.",
    )


def _make_buckets(parameters: Sequence[tuple[str, torch.nn.Parameter]], bucket_bytes: int) -> list[_Bucket]:
    """Consecutive parameters from the last to the first, one dtype and device a bucket."""
    groups: list[list[torch.nn.Parameter]] = []
    size = 0
    for _, parameter in reversed(parameters):
        bytes_needed = parameter.numel() * parameter.element_size()
        fits = groups and _same_kind(groups[-1][0], parameter) and size + bytes_needed <= bucket_bytes
        if not fits:
            groups.append([])
            size = 0
        groups[-1].append(parameter)
        size += bytes_needed
    return [_bucket(f"hvdtrain.gradients.{index}", group) for index, group in enumerate(groups)]


def _same_kind(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.device == other.device


def _bucket(name: str, parameters: list[torch.nn.Parameter]) -> _Bucket:
    first = parameters[0]
    flat = torch.zeros(sum(p.numel() for p in parameters), dtype=first.dtype, device=first.device)
    views, offset = [], 0
    for parameter in parameters:
        views.append((parameter, _laid_out_like(parameter, flat[offset : offset + parameter.numel()])))
        offset += parameter.numel()
    return _Bucket(name, flat, views)


def _laid_out_like(parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """`part` in the parameter's own memory layout (channels last, say), or autograd would reorder at every step."""
    last = sum((count - 1) * stride for count, stride in zip(parameter.shape, parameter.stride(), strict=True))
    if parameter.numel() == last + 1:  # no gaps
        return part.as_strided(parameter.shape, parameter.stride())
    return part.view_as(parameter)
