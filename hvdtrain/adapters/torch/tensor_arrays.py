"""Tensors of any dtype as arrays, and back; numpy does not know all of torch's numbers (`hvdtrain.named_arrays`)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hvdtrain.adapters.plain_values import is_text
from hvdtrain.named_arrays import bits_dtype, name_of_bits

_KNOWN_TO_NUMPY = frozenset(
    getattr(torch, name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)
_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def array_of(tensor: torch.Tensor) -> NDArray[Any]:
    """A tensor in host memory, as an array in the same memory where its numbers are stored as they are."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype in _KNOWN_TO_NUMPY:
        known: NDArray[Any] = tensor.numpy()
        return known
    bits: NDArray[Any] = tensor.view(_SAME_SIZE[tensor.itemsize]).numpy()
    return bits.view(bits_dtype(str(tensor.dtype).removeprefix("torch."), tensor.itemsize))


def view_of(tensor: torch.Tensor) -> NDArray[Any]:
    """The same of a tensor on any device; a copy where it is not in host memory."""
    return array_of(tensor.detach().cpu())


def known_to_numpy(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in a type with which numpy computes; integers as they are."""
    if tensor.dtype in _KNOWN_TO_NUMPY or not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    return tensor.to(torch.complex64 if tensor.is_complex() else torch.float32)


def view_of_tensor(value: object) -> NDArray[Any] | None:
    """`view_of` a tensor; None for anything else."""
    return view_of(value) if isinstance(value, torch.Tensor) else None


def tensor_of(array: NDArray[Any]) -> torch.Tensor:
    """A writable array as a tensor in the same memory."""
    name = name_of_bits(array.dtype)
    if name is None:
        return torch.from_numpy(array)
    dtype: torch.dtype = getattr(torch, name)
    return torch.from_numpy(array.view(f"<i{dtype.itemsize}" if dtype.itemsize > 1 else "u1")).view(dtype)


def to_tensor(array: NDArray[Any]) -> torch.Tensor:
    """A copy: the array may be a read-only file map."""
    return tensor_of(np.array(array))


@torch.no_grad()
def assign(target: torch.Tensor, values: torch.Tensor | NDArray[Any]) -> None:
    """Put the values of another tensor, or of an array, which may be read-only, into a tensor."""
    target.copy_(values if isinstance(values, torch.Tensor) else to_tensor(values))


Copy = Callable[..., NDArray[Any]]
"""(tensor, into=None) → a copy in host memory that begins: in that of `into`, where it fits, as new takes longer."""


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
