"""Tensors of dtypes that Horovod 0.28.1 does not know, as tensors that it can send, and back."""

from typing import Final

import torch

from hvdtrain.errors import UsageError

_SUMMED: Final = frozenset((torch.int32, torch.int64, torch.float16, torch.float32, torch.float64))
_COPIED: Final = _SUMMED | {torch.uint8, torch.int8}
_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def require_dense(name: str, tensor: torch.Tensor) -> None:
    """Raise `UsageError` for a sparse tensor, which rank 0 cannot send to all."""
    if tensor.layout != torch.strided:
        raise UsageError(
            f"{name} is a tensor of the layout {tensor.layout}.",
            "All ranks were to get that of one rank, and Horovod sends dense tensors.",
            "make it equal on all ranks as an attribute of the model that is no buffer, or keep it as a dense tensor.",
        )


def as_known(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as numbers of a dtype that Horovod can send: bfloat16 and others as their bits."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor if tensor.dtype in _COPIED else tensor.view(_BITS[tensor.element_size()])


def as_before(known: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What `as_known` has made of a tensor of this dtype, as such a tensor again."""
    return torch.view_as_complex(known) if dtype.is_complex else known.view(dtype)


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as whole numbers of the same size, two for a complex one."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.view(_BITS[real.element_size()])


def from_bits(bits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What `as_bits` has made of a tensor of this dtype, as such a tensor again."""
    return as_before(bits.view(dtype.to_real()), dtype) if dtype.is_complex else bits.view(dtype)


def as_summable(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, or a copy of greater numbers, as a dtype whose numbers Horovod can reduce."""
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    if tensor.dtype in _SUMMED:
        return tensor
    return tensor.float() if tensor.is_floating_point() else tensor.int()
