"""What `register_comm_hook` takes: functions on a bucket, and those of torch's hooks that hvdtrain has itself."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import horovod.torch
import torch
from horovod.torch import mpi_ops
from horovod.torch.compression import Compression

from hvdtrain.adapters.choose_sync import BUCKET_BYTES, ChosenSync
from hvdtrain.adapters.torch.buckets import Trainable
from hvdtrain.adapters.torch.comm_hooks import BFloat16Sum, CommHook, GradBucket, PendingReduction
from hvdtrain.adapters.torch.powersgd import PowerSgd
from hvdtrain.errors import UsageError
from hvdtrain.torch.reduction import Reduction

HookFunction = Callable[[Any, "Bucket"], "torch.futures.Future[Any] | torch.Tensor"]

_TORCH_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks."


class Bucket:
    """What a hook function sees of a bucket: the methods of `torch.distributed.GradBucket`."""

    def __init__(self, index: int, bucket: GradBucket, is_last: bool) -> None:
        self._index, self._bucket, self._is_last = index, bucket, is_last

    def index(self) -> int:
        """The place of the bucket; 0 has the last parameters of the model."""
        return self._index

    def buffer(self) -> torch.Tensor:
        """The gradients of this rank, flat, of shape [numbers]."""
        return self._bucket.flat

    def set_buffer(self, tensor: torch.Tensor) -> None:
        """Put other numbers into the buffer."""
        self._bucket.flat.copy_(tensor)

    def gradients(self) -> list[torch.Tensor]:
        """The gradient of each parameter, as parts of the buffer."""
        return [view for _, view in self._bucket.views]

    def parameters(self) -> Sequence[torch.Tensor]:
        """The parameters, in the order of the buffer."""
        return [parameter for _, parameter in self._bucket.members]

    def is_last(self) -> bool:
        """Whether this is the bucket with the first parameters of the model."""
        return self._is_last


class FunctionHook(CommHook):
    """Lets a function of the user's reduce buckets, in their order, which is the same on all ranks.

    What the function returns, or its future holds, becomes the gradients.
    """

    in_order = True
    keeps_unused = False  # the function says what becomes of them

    def __init__(self, state: Any, function: HookFunction) -> None:
        super().__init__()
        self._state, self._function, self._count = state, function, 0

    def open(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        index = int(bucket.name.rpartition(".")[2])
        self._count = index + 1

        def reduction() -> PendingReduction:
            result = self._function(self._state, Bucket(index, bucket, index == self._count - 1))
            future = result if isinstance(result, torch.futures.Future) else _done(result)
            reduced = yield future
            numbers = reduced[0] if isinstance(reduced, list | tuple) else reduced
            if numbers is not bucket.flat:
                bucket.flat.copy_(numbers.reshape(-1))

        return reduction


class BFloat16Mean(BFloat16Sum):
    """Sent as bfloat16, summed in float32, divided by the number of ranks.

    Within a process set, and where some ranks have joined, the rounded numbers are sent as float32: `BFloat16Sum` needs
    all ranks.
    """

    def __init__(self, reduction: Reduction) -> None:
        super().__init__(horovod.torch, reduction.start_sum, 1.0)
        self._set = reduction.process_set

    def open(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        begin = super().open(bucket)

        def reduction() -> PendingReduction:
            yield from self._rounded(bucket) if self._needs_float32() else begin()
            bucket.flat.div_(self._set.size())

        return reduction

    def _needs_float32(self) -> bool:
        return self.some_joined or self._set.size() < mpi_ops.size()

    def _rounded(self, bucket: GradBucket) -> PendingReduction:
        sent = bucket.flat.to(torch.bfloat16).float()
        yield from self._summed(sent, bucket)
        bucket.flat.copy_(sent.to(torch.bfloat16))


def hook_of(state: Any, function: HookFunction, trainable: Trainable, reduction: Reduction) -> CommHook:
    """The comm hook for what the user has registered.

    Raises `UsageError`: one of torch's hooks that needs torch.distributed, something that cannot be called, or a state
    of PowerSGD that asks for what there is not.
    """
    if not callable(function):
        raise UsageError(
            f"register_comm_hook was given {function!r}.",
            "It is called with a state and a bucket.",
            "give it a function of the form hook(state, bucket) that returns a tensor or a torch.futures.Future.",
        )
    module, name = getattr(function, "__module__", "") or "", getattr(function, "__name__", "")
    if not module.startswith(_TORCH_HOOKS):
        return FunctionHook(state, function)
    match name:
        case "allreduce_hook":
            return reduction.hook()
        case "fp16_compress_hook":
            return Reduction(reduction.op, reduction.process_set, compression=Compression.fp16).hook()
        case "bf16_compress_hook":
            return BFloat16Mean(reduction)
        case "powerSGD_hook" | "batched_powerSGD_hook":
            return PowerSgdOfState(state, trainable, reduction)
    raise UsageError(
        f"register_comm_hook was given torch's {name}.",
        "It communicates through torch.distributed, and the gradients here are Horovod's.",
        "use allreduce_hook, fp16_compress_hook, bf16_compress_hook or powerSGD_hook, or a function of your own.",
    )


class PowerSgdOfState(PowerSgd):
    """Means as they are for the first `state.start_powerSGD_iter` updates, factors from then on.

    Raises `UsageError`: a state that leaves out error feedback or warm start.
    """

    def __init__(self, state: Any, trainable: Trainable, reduction: Reduction) -> None:
        for option in ("use_error_feedback", "warm_start"):
            if not getattr(state, option, True):
                raise UsageError(
                    f"The PowerSGDState has {option}=False.",
                    "hvdtrain's PowerSGD always keeps what it did not send, and the factors of the last update.",
                    f"leave {option} out.",
                )
        ranks, rank = reduction.process_set.size(), int(getattr(state, "matrix_approximation_rank", 1))
        chosen = ChosenSync("buckets", "powersgd", ranks, float(ranks), BUCKET_BYTES, rank, False, 1)
        super().__init__(reduction.start_sum, trainable, chosen)
        self._set = reduction.process_set
        self._first = int(getattr(state, "start_powerSGD_iter", 0))
        self._updates: Counter[str] = Counter()  # of each bucket

    def open(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        begin = super().open(bucket)
        self._size = self._set.size()  # in an elastic job another one in each world

        def reduction() -> PendingReduction:
            self._updates[bucket.name] += 1
            if self._updates[bucket.name] > self._first:
                yield from begin()
            else:
                yield self._start_sum(bucket.flat, bucket.name)
                bucket.flat.div_(self._size)

        return reduction


def _done(result: torch.Tensor) -> "torch.futures.Future[Any]":
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return future
