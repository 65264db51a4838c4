"""Many tensors instead of one, so that a rule's operation is one GPU kernel for all of them."""

from __future__ import annotations

from typing import Any, final

import torch

from hvdtrain.algorithms.update_rules import Operations


@final
class TensorList:
    """Tensors of one device and dtype with the operators that the rules use, element by element of the list.

    The other side may be a list of as many, a number, or a vector with one scalar for each tensor of the list.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors

    def __add__(self, other: Any) -> TensorList:
        return TensorList(list(torch._foreach_add(self.tensors, _each(other))))

    def __sub__(self, other: Any) -> TensorList:
        return TensorList(list(torch._foreach_sub(self.tensors, _each(other))))

    def __mul__(self, other: Any) -> TensorList:
        return TensorList(list(torch._foreach_mul(self.tensors, _each(other))))

    def __truediv__(self, other: Any) -> TensorList:
        return TensorList(list(torch._foreach_div(self.tensors, _each(other))))

    __radd__ = __add__
    __rmul__ = __mul__


def _each(other: Any) -> Any:
    if isinstance(other, TensorList):
        return other.tensors
    return list(other.unbind()) if isinstance(other, torch.Tensor) else other


def _sqrt(many: TensorList) -> TensorList:
    return TensorList(list(torch._foreach_sqrt(many.tensors)))


def _norm(many: TensorList) -> torch.Tensor:
    return torch.stack(list(torch._foreach_norm(many.tensors)))


OPERATIONS = Operations(sqrt=_sqrt, norm=_norm, where=torch.where)
"""Of `TensorList`; a scalar of the rules is a vector, with one element a tensor."""
