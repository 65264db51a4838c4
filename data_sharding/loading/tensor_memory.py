"""Tensors of torch as numpy arrays over the same memory, so that processes share it: torch's own pickle copies it."""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

TensorParts = tuple[NDArray[np.uint8], Any, tuple[int, ...]]


def parts_of_tensor(value: Any) -> TensorParts | None:
    """The bytes uint8[n] of a dense tensor on the CPU, its dtype, and its shape; None: it is none of these.

    A parameter, and a tensor that requires gradients, is left to torch: it is more than its numbers.
    """
    torch = sys.modules.get("torch")
    if torch is None or type(value) is not torch.Tensor:
        return None
    is_plain = value.layout == torch.strided and value.device.type == "cpu" and not value.requires_grad
    if not is_plain or value.is_quantized or value.is_conj() or value.is_neg() or vars(value) or not value.numel():
        return None
    content = value.contiguous().reshape(-1).view(torch.uint8).numpy()
    return content, value.dtype, tuple(value.shape)


def tensor_of(content: NDArray[np.uint8], dtype: Any, shape: tuple[int, ...]) -> Any:
    """The tensor of what `parts_of_tensor` returned, over the memory of `content`. torch's dtype has imported torch."""
    return sys.modules["torch"].from_numpy(content).view(dtype).reshape(shape)
