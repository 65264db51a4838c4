"""Tensors copied to host memory: from a GPU many at once, on a stream of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from numpy.typing import NDArray

from hvdtrain.adapters.plain_values import is_text
from hvdtrain.adapters.torch.tensor_arrays import array_of, tensor_of


class Copy(Protocol):
    """Begins a copy in host memory: in that of `into`, where it fits, as new memory takes longer than the copy."""

    def __call__(self, tensor: torch.Tensor, into: NDArray[Any] | None = None) -> NDArray[Any]: ...


@contextmanager
def host_copies(device: torch.device) -> Iterator[Copy]:
    """What copies; the arrays are complete when this is left, where all copies from `device` are waited for at once.

    They begin behind what was queued before, such as the update, and what is queued meanwhile does not wait for them.
    """
    if device.type != "cuda":
        yield to_array
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))

    def copy(tensor: torch.Tensor, into: NDArray[Any] | None = None) -> NDArray[Any]:
        with torch.cuda.stream(stream):
            return _copy(tensor, into, waits=tensor.device != device)

    try:
        yield copy
    finally:
        stream.synchronize()


def to_array(tensor: torch.Tensor, into: NDArray[Any] | None = None) -> NDArray[Any]:
    """A copy of one tensor, complete on return."""
    return _copy(tensor, into, waits=True)


def _copy(tensor: torch.Tensor, into: NDArray[Any] | None, waits: bool) -> NDArray[Any]:
    host = None if into is None or is_text(into) else tensor_of(into)
    if host is None or host.shape != tensor.shape or host.dtype != tensor.dtype:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)  # which GPUs copy to faster
    return array_of(host.copy_(tensor.detach(), non_blocking=not waits))
