"""Tensors of dtypes that Horovod 0.28.1 does not know, as tensors that it can send, and back."""

from typing import Final

import torch

_SUMMED: Final = frozenset((torch.int32, torch.int64, torch.float16, torch.float32, torch.float64))
_COPIED: Final = _SUMMED | {torch.uint8, torch.int8}
_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_known(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as numbers of a dtype that Horovod can send: bfloat16 and others as their bits."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor if tensor.dtype in _COPIED else tensor.view(_BITS[tensor.element_size()])


def as_before(known: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What `as_known` has made of a tensor of this dtype, as such a tensor again."""
    return torch.view_as_complex(known) if dtype.is_complex else known.view(dtype)


def as_summable(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, or a copy of greater numbers, as a dtype whose numbers Horovod can reduce."""
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    if tensor.dtype in _SUMMED:
        return tensor
    return tensor.float() if tensor.is_floating_point() else tensor.int()
