"""The sum of all ranks' gradients in torch, and what the adapter requires of any other way to synchronize ranks.

Small gradients share a few flat buffers ("buckets"); on CPUs large ones travel as autograd made them (`buckets`).
Communication of a bucket starts in the background when its last gradient is ready, in place and in few messages. The
comm hook says what is sent.
The same idea as PyTorch DDP's gradient buckets (Li et al., VLDB 2020) with `gradient_as_bucket_view`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from hvdtrain.adapters.choose_sync import BUCKET_BYTES, ChosenSync, require_adasum
from hvdtrain.adapters.sync_state import SyncState
from hvdtrain.adapters.torch import comm_hooks
from hvdtrain.adapters.torch.buckets import Bucket, Trainable, grouped, make_buckets
from hvdtrain.adapters.torch.powersgd import PowerSgd
from hvdtrain.errors import UsageError

Wait = Callable[[comm_hooks.Handle], Any]


class GradientSync(SyncState, ABC):
    """The gradients, or the weights, of one rank together with those of the others.

    The order of an update: for each micro batch `set_grad_sync(last)` and a backward pass; `finish`; the
    optimizer's step; `after_update`; `clear`.

    Attributes:
        sending: is called when communication begins while this rank still computes.
        acts_after_update: `after_update` does something.
        fixed_by: the option because of which no further parameters can be trained later; "" if there is none.
    """

    acts_after_update = False
    fixed_by = ""

    sending: Callable[[], None] = staticmethod(lambda: None)

    def set_grad_sync(self, last: bool) -> None:  # noqa: B027
        """A backward pass follows; `last`: no other one adds to the gradients of this update."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until every parameter's `.grad` is what the optimizer needs: None where no rank's loss has used it, on
        all ranks alike. Collective."""

    @abstractmethod
    def clear(self) -> None:
        """Forget the gradients."""

    @abstractmethod
    def set_trainable(self, trainable: Trainable) -> None:
        """These parameters are trained from now on, the same on all ranks. Between steps, unless `fixed_by` is set."""

    def updated(self, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        return parameters

    def total_norm(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """The norm of all gradients together, given those of what is `updated`. Collective where these are parts."""
        return torch.nn.utils.get_total_norm(gradients)


class NoSync(GradientSync):
    """One process: no communication, and dense gradients as with many ranks.

    Optimizers have other rules for sparse gradients. A parameter that the loss has not used has no gradient, so that
    they skip it.

    Args: `fills_unused`: give such a parameter zeros instead, unless it is frozen.
    """

    def __init__(self, trainable: Trainable, fills_unused: bool = False) -> None:
        super().__init__()
        self._fills_unused = fills_unused
        self.set_trainable(trainable)

    def set_trainable(self, trainable: Trainable) -> None:
        self._trainable = [parameter for _, parameter in trainable]

    def finish(self) -> None:
        for parameter in self._trainable:
            if parameter.grad is not None:
                if parameter.grad.is_sparse:
                    parameter.grad = parameter.grad.to_dense()
            elif self._fills_unused and parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)

    def clear(self) -> None:
        for parameter in self._trainable:
            parameter.grad = None


class SummedGradients(GradientSync):
    """Sums the gradients of all ranks, which are parts of the global batch's gradient; a comm hook may change the rule.

    It owns the `.grad` of all parameters.

    Args:
        trainable: names and parameters, in the model's order; gradients appear roughly in reverse.
        wait: waits for a handle of the hook, and returns what the hook is sent.
        cap: bytes of the largest bucket of several gradients.
    """

    def __init__(self, trainable: Trainable, hook: comm_hooks.CommHook, wait: Wait, cap: int = BUCKET_BYTES) -> None:
        super().__init__(hook)
        self._trainable, self._hook, self._wait = trainable, hook, wait
        self.fixed_by = hook.fixed_by
        self._held = False
        self._buckets: list[Bucket] = []
        self._hooks: list[Any] = []
        self.set_bucket_cap(cap)

    def buckets(self, cap: int) -> tuple[int, ...]:
        return tuple(len(group) for group in grouped(self._trainable, cap, self._hook))

    def set_trainable(self, trainable: Trainable) -> None:
        self._trainable = trainable
        self.set_bucket_cap(self._cap)

    def set_bucket_cap(self, cap: int) -> None:
        self._cap = cap
        for hook in self._hooks:
            hook.remove()
        self._buckets, self._hooks = [], []  # before the new ones, so that memory need not hold both
        for _, parameter in self._trainable:
            parameter.grad = None
        self._buckets = self._cut()
        self._hooks = [
            _hook_of(parameter, self._on_gradient(bucket))
            for bucket in self._buckets
            for parameter in bucket.parameters
        ]
        self.clear()

    def _cut(self) -> list[Bucket]:
        return make_buckets(self._trainable, self._hook, self._cap)

    def set_grad_sync(self, last: bool) -> None:
        self._held = not last

    def finish(self) -> None:
        # A bucket some of whose parameters took no part in the loss (on this rank, in this step) is reduced too, with
        # zeros in their places, so that all ranks run the same collectives. `UsageMarks` tell who needs none.
        for bucket in self._buckets:
            bucket.complete()
        pending = self._buckets
        while pending:  # the second messages of all buckets start before one of them is waited for
            pending = [bucket for bucket in pending if not bucket.is_reduced(self._wait)]

    def clear(self) -> None:
        for bucket in self._buckets:
            bucket.clear()

    def _on_gradient(self, bucket: Bucket) -> Callable[[nn.Parameter], None]:
        def hook(parameter: nn.Parameter) -> None:
            if bucket.has_begun:
                raise _too_late(bucket.name)
            bucket.take(parameter)
            if not self._held and bucket.is_full(parameter):
                self._on_full(bucket)

        return hook

    def _on_full(self, bucket: Bucket) -> None:
        self.sending()
        bucket.start()


def _too_late(name: str) -> UsageError:
    return UsageError(
        f"A gradient of {name} arrived after the sum over ranks had begun.",
        "The model adds to it several times in one backward pass, and only the first part would be summed.",
        "use torch.utils.checkpoint with use_reentrant=False, and call backward only through hvdtrain.",
    )


def trainable_of(model: nn.Module, without: frozenset[nn.Parameter] = frozenset()) -> Trainable:
    """Names and parameters that require gradients, in the model's order."""
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad and p not in without]


def start_sum_over(process_set: Any) -> comm_hooks.StartSum:
    """Horovod's allreduce over a set of ranks; None: all of them."""
    import horovod.torch as hvd

    within = {} if process_set is None else {"process_set": process_set}
    return lambda tensor, name: hvd.allreduce_async_(tensor, name=name, op=hvd.Sum, **within)


def summed_gradients(trainable: Trainable, chosen: ChosenSync) -> SummedGradients:
    """Sum gradients by the comm hook that was chosen; names and parameters are in the model's order.

    Raises `UsageError`: Horovod has no such op here.
    """
    if chosen.ranks == 1:
        hook = PowerSgd(lambda tensor, _name: tensor, trainable, chosen)
        return SummedGradients(trainable, hook, lambda handle: handle, chosen.bucket_bytes)
    import horovod.torch as hvd

    return SummedGradients(trainable, _hook(hvd, trainable, chosen), hvd.synchronize, chosen.bucket_bytes)


def _hook(hvd: Any, trainable: Trainable, chosen: ChosenSync) -> comm_hooks.CommHook:
    start_sum = start_sum_over(chosen.process_set)
    match chosen.hook:
        case "adasum":
            require_adasum(hvd, on_gpu=any(p.is_cuda for _, p in trainable))
            return comm_hooks.Adasum(hvd)
        case "powersgd":
            return PowerSgd(start_sum, trainable, chosen)
        case "bf16":
            return comm_hooks.BFloat16Sum(hvd, start_sum, chosen.loss_multiplier)
        case "fp16":
            return comm_hooks.Float16Sum(start_sum, chosen.loss_multiplier)
        case "plain":
            return comm_hooks.PlainSum(start_sum, chosen.loss_multiplier)


class HorovodGradients(NoSync):
    """Sums each gradient by a message of its own, in the hooks of `hvd.DistributedOptimizer`; Horovod fuses messages.

    A parameter that no rank's loss has used gets zeros, as Horovod has it, unless it is frozen.

    The update is made by the adapter's optimizer: Horovod's wraps one that is never stepped.

    Args: `accumulate_steps`: backward passes of an update.
    """

    fixed_by = "--gradient-sync horovod"

    def __init__(self, trainable: Trainable, accumulate_steps: int, loss_multiplier: float) -> None:
        import horovod.torch as hvd

        super().__init__(trainable)
        self.loss_multiplier = loss_multiplier
        self._optimizer: Any = hvd.DistributedOptimizer(
            torch.optim.SGD(self._trainable, lr=0.0),
            named_parameters=trainable,
            op=hvd.Sum,
            backward_passes_per_step=accumulate_steps,
            sparse_as_dense=True,
        )

    def finish(self) -> None:
        self._optimizer.synchronize()
        super().finish()
        for parameter in self._trainable:
            if not parameter.requires_grad:
                parameter.grad = None


def _hook_of(parameter: nn.Parameter, on_gradient: Callable[[nn.Parameter], None]) -> Any:
    """Also of a parameter that is frozen now: user code may train it again."""
    trains = parameter.requires_grad
    parameter.requires_grad_(True)
    handle = parameter.register_post_accumulate_grad_hook(on_gradient)  # type: ignore[no-untyped-call]
    parameter.requires_grad_(trains)
    return handle
