"""Which numbers of a bucket are a rank's, and the pieces of parameters that they are."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from hvdtrain.adapters.state_partitions import pieces_of
from hvdtrain.adapters.torch.comm_hooks import is_mark
from hvdtrain.errors import UsageError

Members = Sequence[tuple[str, nn.Parameter]]


@dataclass(frozen=True, eq=False)
class Piece:
    """The part of a parameter that a rank updates."""

    name: str
    parameter: nn.Parameter  # as the model has it
    weights: nn.Parameter  # [end - start] in the parameter's own memory; its gradient is this rank's part of the sum
    start: int  # its first number, in the order of the parameter's memory
    end: int  # behind its last one


class Shard:
    """A rank's part of a bucket: the numbers that Horovod's reducescatter gives to it.

    Args: `members`: names and parameters in the bucket, consecutive in it, each in the order of its memory.
    """

    def __init__(self, name: str, members: Members, rank: int, size: int) -> None:
        self.name, self.members = name, members
        self._numbers = [parameter.numel() for _, parameter in members]
        self.pieces: list[Piece] = []
        for index, start, end in pieces_of(self._numbers, rank, size):
            weights = nn.Parameter(in_memory_order(*members[index])[start:end])
            self.pieces.append(Piece(*members[index], weights, start, end))
        self._lengths = [piece.end - piece.start for piece in self.pieces]

    def add_gradients(self, summed: torch.Tensor, missing: Sequence[int] = ()) -> None:
        """Take this rank's part of the summed gradients, [numbers]; a further micro batch adds to it.

        Args:
            missing: members, by their numbers, of which this rank had no gradient: nothing is added for those of which
                no rank had one, whose sums are marked (`UsageMarks`).
        """
        names = {self.members[number][0] for number in missing}
        for piece, part in zip(self.pieces, torch.split(summed, self._lengths), strict=True):
            if piece.name in names and part.is_floating_point() and is_mark(float(part[0])):
                continue
            if piece.weights.grad is None:
                piece.weights.grad = part
            else:
                piece.weights.grad.add_(part)

    def clear_gradients(self) -> None:
        for piece in self.pieces:
            piece.weights.grad = None

    def own_weights(self) -> torch.Tensor:
        """A copy of this rank's weights, [numbers]."""
        if not self.pieces:
            _, first = self.members[0]
            return first.new_empty(0)
        return torch.cat([piece.weights.detach() for piece in self.pieces])

    def take_weights(self, gathered: torch.Tensor) -> None:
        """Put all ranks' weights, [numbers of the bucket], into the parameters."""
        weights = [in_memory_order(*member) for member in self.members]
        torch._foreach_copy_(weights, torch.split(gathered, self._numbers))


def in_memory_order(name: str, parameter: torch.Tensor) -> torch.Tensor:
    """A parameter's numbers, [numel], where they are. Raises `UsageError`: there are gaps between them."""
    last = sum((count - 1) * stride for count, stride in zip(parameter.shape, parameter.stride(), strict=True))
    if parameter.numel() and parameter.numel() != last + 1:
        raise UsageError(
            f"The parameter {name!r} of shape {tuple(parameter.shape)} has gaps in memory, or numbers that overlap.",
            "--shard divides a parameter's memory among the workers.",
            "make it contiguous in build_model(), or leave --shard out.",
        )
    return parameter.detach().as_strided((parameter.numel(),), (1,))
