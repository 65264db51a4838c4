"""The comm hook that sends gradients as the two factors of PowerSGD (`hvdtrain.algorithms.powersgd_rule`)."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from hvdtrain.adapters.choose_sync import ChosenSync
from hvdtrain.adapters.torch.buckets import Trainable
from hvdtrain.adapters.torch.comm_hooks import CommHook, GradBucket, Handle, PendingReduction, StartSum
from hvdtrain.adapters.torch.tensor_arrays import assign, to_array
from hvdtrain.algorithms import powersgd_rule


@dataclass
class _Matrix:
    """One parameter that is sent as factors."""

    # gradient, error: of the parameter's shape, in its memory layout; the gradient is a view of its bucket
    gradient: torch.Tensor
    error: torch.Tensor
    shape: tuple[int, int]  # (n, m) of both as matrices
    factor: torch.Tensor  # [m, r]
    first_factor: torch.Tensor

    def without_memory(self) -> "_Matrix":
        """The same in one update, after which this one's error and factor are as they were before."""
        return replace(self, error=torch.zeros_like(self.error))


class PowerSgd(powersgd_rule.Memory, CommHook):
    """A reduction has two messages: the left factors together with all that is not a matrix, and the right factors.

    Args:
        trainable: all trained parameters, in the model's order.
        chosen: with the rank of the factors; a matrix for which they would not be smaller is sent as it is.
    """

    fixed_by = "--compression powersgd"
    keeps_unused = False  # what is left of earlier updates arrives in any case
    _to_host, _assign = staticmethod(to_array), staticmethod(assign)

    def __init__(self, start_sum: StartSum, trainable: Trainable, chosen: ChosenSync) -> None:
        self._own: dict[str, _Matrix] = {}
        super().__init__(chosen.ranks, self._own)
        self._start_sum, self._size, self._rank = start_sum, chosen.ranks, chosen.powersgd_rank
        self._places = {name: place for place, (name, _) in enumerate(trainable)}
        self._factor = float(chosen.ranks) if chosen.sums_means else 1.0

    def open(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        # Matrices are orthogonalized in 32 bits or 64 only.
        factored = {
            n: self._matrix(n, view) for n, view in bucket.views if view.element_size() >= 4 and self._pays(view)
        }
        self._own.update(factored)
        rest = [_as_matrix(view, (view.numel(), 1)) for name, view in bucket.views if name not in factored]
        return lambda: self._reduction(bucket.name, self._taking_part(bucket, factored), rest)

    def _taking_part(self, bucket: GradBucket, factored: Mapping[str, _Matrix]) -> list[_Matrix]:
        """The matrices of a bucket in this update.

        A frozen one would spend its error on a gradient that is discarded. It sends zeros, so that messages have the
        same length on all ranks at any time.
        """
        frozen = {bucket.members[number][0] for number in bucket.frozen()}
        return [matrix.without_memory() if name in frozen else matrix for name, matrix in factored.items()]

    def _pays(self, view: torch.Tensor) -> bool:
        return powersgd_rule.pays(*powersgd_rule.matrix_shape(_shape_in_memory(view), outputs=0), self._rank)

    def _matrix(self, name: str, view: torch.Tensor) -> _Matrix:
        shape = powersgd_rule.matrix_shape(_shape_in_memory(view), outputs=0)
        first = torch.from_numpy(powersgd_rule.first_factor(self._places[name], shape[1], self._rank)).to(view)
        return _Matrix(view, torch.zeros_like(view), shape, first.clone(), first)

    @torch.no_grad()
    def _reduction(self, name: str, matrices: list[_Matrix], rest: list[torch.Tensor]) -> PendingReduction:
        gradients = [_as_matrix(m.gradient, m.shape) for m in matrices]
        errors = [_as_matrix(m.error, m.shape) for m in matrices]
        update = powersgd_rule.Round(gradients, errors, [m.factor for m in matrices], _OPERATIONS)
        means = yield from self._mean(update.first_message() + rest, f"{name}.left")
        for whole, mean in zip(rest, means[len(matrices) :], strict=True):
            torch.mul(mean, self._factor, out=whole)
        if not matrices:
            return
        second = update.second_message(means[: len(matrices)])
        update.new_errors()  # in place
        right = yield from self._mean(second, f"{name}.right")
        for gradient, p, q in zip(gradients, update.left, right, strict=True):
            torch.mm(p, (q * self._factor).T, out=gradient)
        factors = update.next_factors(right, [m.first_factor for m in matrices])
        for matrix, factor in zip(matrices, factors, strict=True):
            matrix.factor = factor

    def _mean(self, tensors: list[torch.Tensor], name: str) -> Generator[Handle, Any, list[torch.Tensor]]:
        """Their means over ranks, after one message."""
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        yield self._start_sum(flat, name)
        parts = torch.split(flat.div_(self._size), [tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _shape_in_memory(view: torch.Tensor) -> tuple[int, ...]:
    """Its dimensions from the one of the largest stride to that of the smallest: channels last are last."""
    sizes_and_strides = sorted(zip(view.shape, view.stride(), strict=True), key=lambda pair: -pair[1])
    return tuple(size for size, _ in sizes_and_strides)


def _as_matrix(view: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """The same memory, which has no gaps, row by row."""
    return view.as_strided(shape, (shape[1], 1))


_OPERATIONS = powersgd_rule.Operations(
    transposed=torch.t,
    orthonormal=lambda matrix: torch.linalg.qr(matrix).Q,
    revived=lambda factor, first: torch.where((factor == 0).all(dim=0), first, factor),
)
