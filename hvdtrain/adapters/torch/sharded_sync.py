"""State sharding in torch: each rank updates a part of every bucket's weights, and keeps the optimizer's state of it.

Rajbhandari et al. 2020 (arXiv:1910.02054, "ZeRO"), stages 1 and 2. A reducescatter sums gradients, of which each rank
gets its part; the optimizer changes that part of the weights in their own memory; an allgather distributes the weights.
Together they send as much as the ring allreduce that they replace.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from hvdtrain import activity
from hvdtrain.adapters.choose_sync import ChosenSync, needs_whole_weights
from hvdtrain.adapters.step_timer import BACKWARD, OPTIMIZER
from hvdtrain.adapters.sync_state import LARGE_BYTES, pieces_of
from hvdtrain.adapters.torch.buckets import Bucket, Trainable, has_no_gaps
from hvdtrain.adapters.torch.comm_hooks import CommHook, GradBucket, PendingReduction, is_mark
from hvdtrain.adapters.torch.gradient_sync import SummedGradients, trainable_of
from hvdtrain.adapters.torch.optimizers import RuleOptimizer
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.errors import UsageError

_BY_NUMBER = tuple(
    getattr(torch.optim, name)
    for name in ("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
)
"""Optimizers that update each number of a weight by its own gradient and state."""

_GATHERED = 4  # buckets of weights that travel at a time: limits the memory for copies
_REDUCED = 4


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

    def __init__(self, name: str, members: Trainable, rank: int, size: int) -> None:
        self.name, self.members = name, members
        self._numbers = [parameter.numel() for _, parameter in members]
        self.pieces: list[Piece] = []
        for index, start, end in pieces_of(self._numbers, rank, size):
            weights = nn.Parameter(in_memory_order(*members[index])[start:end])
            self.pieces.append(Piece(*members[index], weights, start, end))
        self._lengths = [piece.end - piece.start for piece in self.pieces]

    def add_gradients(self, summed: torch.Tensor, missing: Sequence[int] = ()) -> None:
        """Take this rank's part of the summed gradients, [numbers]; a further micro batch adds to it.

        Args: `missing`: members, by their numbers, of which this rank had no gradient: nothing is added for those of
        which no rank had one, whose sums are marked (`UsageMarks`).
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
    if parameter.numel() and not has_no_gaps(parameter):
        raise UsageError(
            f"The parameter {name!r} of shape {tuple(parameter.shape)} has gaps in memory, or numbers that overlap.",
            "--shard divides a parameter's memory among the workers.",
            "make it contiguous in build_model(), or leave --shard out.",
        )
    return parameter.detach().as_strided((parameter.numel(),), (1,))


class ScatteredSum(CommHook):
    """Gradients summed by a reducescatter; this rank's part becomes the gradient of its pieces of the weights."""

    reduces_in_place = True
    leaves_all = False
    fixed_by = "--shard"

    def __init__(self, hvd: Any, loss_multiplier: float) -> None:
        super().__init__(loss_multiplier)
        self._hvd = hvd
        self.shards: list[Shard] = []  # one for each bucket

    def large_bytes(self, on_gpu: bool) -> float:  # noqa: ARG002
        """On GPUs too: a gradient that is a bucket by itself is not kept in a buffer when it has been summed."""
        return LARGE_BYTES

    def mark_places(self, lengths: Sequence[int]) -> list[list[int]]:
        """Mark where each rank's pieces begin: it has only these of the sums."""
        starts, size = list(accumulate(lengths, initial=0)), self._hvd.size()
        places: list[list[int]] = [[] for _ in lengths]
        for rank in range(size):
            for index, start, _ in pieces_of(lengths, rank, size):
                places[index].append(starts[index] + start)
        return places

    def open(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        shard = Shard(bucket.name, bucket.members, self._hvd.rank(), self._hvd.size())
        self.shards.append(shard)

        def reduction() -> PendingReduction:
            bucket.marks.put_into(bucket.flat)
            missing = bucket.marks.missing
            summed = yield self._hvd.reducescatter_async(bucket.flat, name=bucket.name, op=self._hvd.Sum)
            shard.add_gradients(summed, missing)

        return reduction


class ShardedSync(SummedGradients):
    """See the module.

    Args: `optimizer`: without state; from now on it trains this rank's pieces of the parameters.

    Attributes:
        waiting: makes the block in which this rank waits for others, given the part of the step that it interrupts.

    Raises `UsageError`: the optimizer needs more than a part of a parameter.
    """

    acts_after_update = True
    waiting: Callable[[int], AbstractContextManager[object]] = staticmethod(lambda _: nullcontext())

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, options: TrainingOptions, chosen: ChosenSync
    ) -> None:
        import horovod.torch as hvd

        if type(optimizer) not in (*_BY_NUMBER, RuleOptimizer):
            raise needs_whole_weights(f"the optimizer {type(optimizer).__name__}", _BY_NUMBER, "torch.optim")
        self._hvd: Any = hvd
        # Gradients of each micro batch are reduced, during its backward pass, so that no rank keeps more than its part
        # of them; else they are added up in full, and reduced once in an update.
        self._shards_gradients = options.shard == "gradients"
        # Buckets that may be on their way in the backward pass before it waits for the first of them. A rank must not
        # wait for a bucket while another one waits for it in the backward pass of a normalization.
        self._at_a_time = math.inf if options.sync_batch_norm else _REDUCED
        self._has_passed = False  # a backward pass of this update, whose gradients were not waited for
        trainable, hook = trainable_of(model), ScatteredSum(hvd, chosen.loss_multiplier)
        self._norms_device = next((parameter.device for _, parameter in trainable), torch.device("cpu"))
        self._ready: set[Bucket] = set()
        self.shards: Sequence[Shard] = hook.shards
        super().__init__(trainable, hook, hvd.synchronize, chosen.bucket_bytes)
        place = {parameter: number for number, (_, parameter) in enumerate(reversed(trainable))}
        self._order = sorted(self._buckets, key=lambda bucket: max(place[p] for p in bucket.parameters))
        self._give_pieces_to(optimizer)

    def buckets(self, cap: int) -> tuple[int, ...]:  # noqa: ARG002
        """Nothing can be chosen: the buckets decide which numbers of the optimizer's state are this rank's."""
        return ()

    def updated(self, parameters: list[nn.Parameter]) -> list[nn.Parameter]:  # noqa: ARG002
        return [piece.weights for shard in self.shards for piece in shard.pieces]

    def set_grad_sync(self, last: bool) -> None:
        if self._shards_gradients and self._has_passed:
            with self.waiting(BACKWARD):
                super().finish()
            super().clear()
            self._ready.clear()
        self._has_passed = True
        super().set_grad_sync(last or self._shards_gradients)

    def clear(self) -> None:
        super().clear()
        self._ready.clear()
        self._has_passed = False
        for shard in self.shards:
            shard.clear_gradients()

    def _on_full(self, bucket: Bucket) -> None:
        """Begin at once, or with sharded gradients in the order in which buckets usually are full, few at a time.

        All ranks have then begun the same first buckets, whatever order their gradients come in, and whoever waits
        for one waits for ranks that will begin it: DDP begins its buckets in their order too.
        """
        if not self._shards_gradients:
            super()._on_full(bucket)
            return
        self._ready.add(bucket)
        begun = sum(each.has_begun for each in self._order)
        for number, each in enumerate(self._order[begun:], begun):
            if each not in self._ready:
                break
            super()._on_full(each)
            if number >= self._at_a_time:
                with self.waiting(BACKWARD):
                    self._order[number - int(self._at_a_time)].reduce(self._wait)

    def after_update(self, step: int) -> None:  # noqa: ARG002
        pending: deque[tuple[Shard, Any]] = deque()
        for shard in self.shards:
            handle = self._hvd.allgather_async(shard.own_weights(), name=f"{shard.name}.weights")
            pending.append((shard, handle))
            if len(pending) == _GATHERED:
                self._take_weights(*pending.popleft())
        for shard, handle in pending:
            self._take_weights(shard, handle)

    def _take_weights(self, shard: Shard, handle: Any) -> None:
        activity.now.collective = f"{shard.name}.weights"
        shard.take_weights(self._wait(handle))

    def total_norm(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        norm = super().total_norm(gradients) if gradients else torch.zeros(())
        square = norm.to(self._norms_device, torch.float64).square()
        with self.waiting(OPTIMIZER):
            total: torch.Tensor = self._hvd.allreduce(square, op=self._hvd.Sum, name="hvdtrain.gradients.norm")
        return total.sqrt().float()

    def _give_pieces_to(self, optimizer: torch.optim.Optimizer) -> None:
        pieces: Mapping[torch.Tensor, list[Piece]] = {
            parameter: [piece for piece in shard.pieces if piece.parameter is parameter]
            for shard in self.shards
            for _, parameter in shard.members
        }
        for group in optimizer.param_groups:
            group["params"] = [piece.weights for parameter in group["params"] for piece in pieces.get(parameter, ())]
        for parameter in list(optimizer.state):  # Adagrad has some from the beginning
            state = optimizer.state.pop(parameter)
            for piece in pieces.get(parameter, ()):
                optimizer.state[piece.weights] = _state_of(piece, state)


def _state_of(piece: Piece, state: Mapping[str, Any]) -> dict[str, Any]:
    """What an optimizer keeps of a piece, where it has that of the whole parameter."""
    parts = {}
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            value = value.clone()
            if name != "step" and value.shape == piece.parameter.shape:
                as_parameter = torch.empty_like(piece.parameter, dtype=value.dtype).copy_(value)
                value = in_memory_order(piece.name, as_parameter)[piece.start : piece.end].clone()
        parts[name] = value
    return parts
