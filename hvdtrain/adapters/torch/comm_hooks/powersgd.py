"""Gradients sent as the two factors of PowerSGD; the rule is `hvdtrain.algorithms.powersgd`'s."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from hvdtrain.adapters.torch.comm_hooks.interface import GradBucket, Handle, PendingReduction, StartSum
from hvdtrain.algorithms import powersgd
from hvdtrain.state import State


@dataclass
class _Matrix:
    """One parameter that travels as factors.

    Attributes:
        gradient, error: of the parameter's shape, in its memory layout; the gradient is a view of its bucket.
        shape: (n, m), as which both are seen.
        factor, first_factor: [m, r].
    """

    gradient: torch.Tensor
    error: torch.Tensor
    shape: tuple[int, int]
    factor: torch.Tensor
    first_factor: torch.Tensor


@final
class PowerSgd(powersgd.Memory):
    """Implements `CommHook`.

    A reduction has two messages: the left factors, with all that is no matrix as it is, and the right factors.

    Args:
        start_sum: an allreduce of float32.
        size: number of ranks.
        rank: of the factors; a matrix for which they would not be smaller travels as it is.
        names: of all trained parameters, in the model's order.
        total: bring home the sum of the ranks' mean gradients instead of their mean.
    """

    def __init__(self, start_sum: StartSum, size: int, rank: int, names: Sequence[str], total: bool = False) -> None:
        self.loss_multiplier = float(size)
        self._start_sum, self._size, self._rank = start_sum, size, rank
        self._places = {name: place for place, name in enumerate(names)}
        self._factor = float(size) if total else 1.0
        self._matrices: dict[str, _Matrix] = {}

    def open(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        # Matrices are orthogonalized in 32 bits or 64 only.
        own = {n: self._matrix(n, view) for n, view in bucket.views if view.element_size() >= 4 and self._pays(view)}
        self._matrices.update(own)
        rest = [_as_matrix(view, (view.numel(), 1)) for name, view in bucket.views if name not in own]
        return lambda: self._journey(bucket.name, list(own.values()), rest)

    def _pays(self, view: torch.Tensor) -> bool:
        return powersgd.pays(*powersgd.matrix_shape(_shape_in_memory(view), outputs=0), self._rank)

    def _matrix(self, name: str, view: torch.Tensor) -> _Matrix:
        shape = powersgd.matrix_shape(_shape_in_memory(view), outputs=0)
        first = torch.from_numpy(powersgd.first_factor(self._places[name], shape[1], self._rank)).to(view)
        return _Matrix(view, torch.zeros_like(view), shape, first, first)

    @torch.no_grad()
    def _journey(self, name: str, matrices: list[_Matrix], rest: list[torch.Tensor]) -> PendingReduction:
        gradients = [_as_matrix(m.gradient, m.shape) for m in matrices]
        errors = [_as_matrix(m.error, m.shape) for m in matrices]
        turn = powersgd.Round(gradients, errors, [m.factor for m in matrices], _OPERATIONS)
        means = yield from self._mean(turn.first_message() + rest, f"{name}.left")
        for own, mean in zip(rest, means[len(matrices) :], strict=True):
            torch.mul(mean, self._factor, out=own)
        if not matrices:
            return
        second = turn.second_message(means[: len(matrices)])
        turn.new_errors()  # in place
        right = yield from self._mean(second, f"{name}.right")
        for gradient, p, q in zip(gradients, turn.left, right, strict=True):
            torch.mm(p, (q * self._factor).T, out=gradient)
        factors = turn.next_factors(right, [m.first_factor for m in matrices])
        for matrix, factor in zip(matrices, factors, strict=True):
            matrix.factor = factor

    def _mean(self, tensors: list[torch.Tensor], name: str) -> Generator[Handle, Any, list[torch.Tensor]]:
        """Their means over ranks, after one message."""
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        yield self._start_sum(flat, name)
        parts = torch.split(flat.div_(self._size), [tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def errors(self) -> State:
        return {name: _to_array(matrix.error) for name, matrix in self._matrices.items()}

    def factors(self) -> State:
        return {name: _to_array(matrix.factor) for name, matrix in self._matrices.items()}

    def put_error(self, name: str, error: Any) -> None:
        self._matrices[name].error.copy_(torch.from_numpy(error.copy()))

    def put_factor(self, name: str, factor: Any) -> None:
        matrix = self._matrices[name]
        matrix.factor = torch.from_numpy(factor.copy()).to(matrix.first_factor)

    def forget(self) -> None:
        for matrix in self._matrices.values():
            matrix.error.zero_()
            matrix.factor = matrix.first_factor


def _shape_in_memory(view: torch.Tensor) -> tuple[int, ...]:
    """Its dimensions from the one of the largest stride to that of the smallest: channels last are last."""
    sizes_and_strides = sorted(zip(view.shape, view.stride(), strict=True), key=lambda pair: -pair[1])
    return tuple(size for size, _ in sizes_and_strides)


def _as_matrix(view: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """The same memory, which has no gaps, row by row."""
    return view.as_strided(shape, (shape[1], 1))


def _orthonormal(matrix: torch.Tensor) -> torch.Tensor:
    columns: torch.Tensor = torch.linalg.qr(matrix).Q
    return columns


def _revived(factor: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    return torch.where((factor == 0).all(dim=0), first, factor)


_OPERATIONS = powersgd.Operations(transposed=torch.t, orthonormal=_orthonormal, revived=_revived)


def _to_array(tensor: torch.Tensor) -> Any:
    return tensor.to("cpu", copy=True).contiguous().numpy()
