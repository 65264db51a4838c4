"""Checksums of gradients, by which passes are compared."""

import torch

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(gradient: torch.Tensor | None) -> torch.Tensor:
    """The sum of a gradient's bits as whole numbers, int64[]: one flipped bit changes it, and no order of terms."""
    if gradient is None:
        return torch.zeros((), dtype=torch.int64)
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    return dense.detach().contiguous().view(_BITS[dense.element_size()]).sum(dtype=torch.int64)
