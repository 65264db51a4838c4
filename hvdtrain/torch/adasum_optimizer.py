"""`op=hvd.Adasum`: each rank makes a step of its own, and Adasum combines what the steps would have changed.

For weights w that are equal on all ranks: the optimizer of each rank would turn w into w + d, by the rank's own
gradients and its own state. The ranks' d are combined parameter by parameter (Maleki et al. 2020, arXiv:2006.02924).
The sum of w and the combined d is the new weight. This is the rule of Horovod 0.28.1's `_DistributedAdasumOptimizer`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from horovod.torch import mpi_ops
from horovod.torch.compression import Compressor, NoneCompressor
from torch import nn

from hvdtrain.adapters.torch.buckets import Together, Trainable
from hvdtrain.adapters.torch.comm_hooks import CommHook, GradBucket, PendingReduction
from hvdtrain.torch.loop_gradients import LoopGradients, WrongOrderError, no_gradient
from hvdtrain.torch.reduction import Reduction


class CombiningSteps:
    """The methods of a distributed optimizer that are other ones with Adasum; see `DistributedOptimizer`."""

    _plain: Any
    _gradients: "OwnSteps | None"
    _finish: Callable[[LoopGradients], None]

    def synchronize(self) -> None:
        """Do nothing, as in Horovod: gradients stay this rank's, and `step` exchanges what it changes."""

    def skip_synchronize(self) -> None:
        """Raise `WrongOrderError`: there is no step without an exchange."""
        raise WrongOrderError(
            "Skipping synchronization is not supported when using Adasum optimizer.",
            "Ranks exchange what their steps change, not gradients.",
            "call optimizer.step() by itself; gradients may be clipped before it.",
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make this rank's step, and change the weights by what Adasum makes of all ranks' steps. Collective.

        Args: `closure`: computes the loss, which is returned, and its gradients. It is called once.
        """
        if self._gradients is None:
            return self._plain.step(self, closure)
        loss = closure() if closure is not None else None
        self._finish(self._gradients)
        self._gradients.change_weights()
        return loss


def combines_steps(optimizer: object) -> bool:
    """Whether it was distributed with `op=hvd.Adasum`."""
    return hasattr(optimizer, "skip_synchronize") and getattr(optimizer, "op", None) == mpi_ops.Adasum


class OwnSteps(LoopGradients):
    """Combines the steps of all ranks, bucket by bucket, each as soon as its gradients are complete.

    A loop that changes its gradients between backward() and step(), as clipping does, shows that in the first update of
    a world, in which nothing is exchanged before `finish`. With such a loop this remains so.

    Args:
        optimizer: a distributed one; `_plain` is the class of the user's.
        trainable, reduction, passes, cap, together: as of `LoopGradients`.
    """

    def __init__(
        self, optimizer: Any, trainable: Trainable, reduction: Reduction, *, passes: int, cap: int, together: Together
    ) -> None:
        self._changes = StepChanges(optimizer, reduction.compression)
        self._versions: dict[nn.Parameter, int] = {}  # of gradients, after the last backward pass
        super().__init__(trainable, reduction, self._changes, passes, cap, together)

    def _is_last_pass(self, parameter: nn.Parameter) -> bool:
        is_last = super()._is_last_pass(parameter)
        if is_last and parameter.grad is not None:
            self._versions[parameter] = parameter.grad._version
        return is_last

    def finish(self) -> None:
        """Exchange what this rank's step changes. Collective."""
        if not self._has_agreed:
            known = [(p.grad, self._versions[p]) for p in self.parameters if p in self._versions]
            self.held = any(gradient is None or gradient._version != version for gradient, version in known)
        self._versions.clear()
        self._changes.unused.clear()
        super().finish()

    def finish_with(self, new: Trainable) -> None:
        """As of `LoopGradients`. Gradients stay this rank's, so what has been sent of their steps can be sent again."""
        self.set_trainable([*self.trainable, *new])
        self.finish()

    def change_weights(self) -> None:
        """After `finish`. Raises `WrongOrderError`: no rank has computed a gradient."""
        trained = {parameter for parameter in self.parameters if parameter.requires_grad}
        if trained and trained <= self._changes.unused:
            raise no_gradient()
        with torch.no_grad():
            for parameter, change in self._changes.of_parameters.items():
                parameter.add_(change)

    def _changed_while_sent(self) -> WrongOrderError:
        return WrongOrderError(
            "Gradients were changed after backward() and before step().",
            "The optimizer has used them already, since its first update showed that they stay as they are.",
            "change them, for example by clipping, in each update from the first one on.",
        )


class StepChanges(CommHook):
    """Sends, for a bucket of gradients, what the optimizer's step with them changes. The gradients stay this rank's.

    The weights do not change meanwhile, since the loop may still use them: the optimizer steps copies of them. While
    it does, its groups contain nothing but these, and they have the state of their parameters.

    Args:
        optimizer: as of `OwnSteps`.
        compression: Horovod's, or a class of the user's, for what is sent.

    Attributes:
        of_parameters: what the last exchange adds to each parameter.
        unused: parameters without a gradient on any rank, as far as this rank has none either.
    """

    reduces_in_place = True  # large gradients stay where autograd made them

    def __init__(self, optimizer: Any, compression: Any) -> None:
        super().__init__()
        self._optimizer, self._compression = optimizer, compression
        self.of_parameters: dict[nn.Parameter, nn.Parameter] = {}
        self.unused: set[nn.Parameter] = set()

    def open(self, bucket: GradBucket) -> Callable[[], PendingReduction]:
        parameters = [parameter for _, parameter in bucket.members]
        numbers = [parameter.numel() for parameter in parameters]
        flat = torch.zeros(sum(numbers), dtype=parameters[0].dtype, device=parameters[0].device)
        # Rows follow each other, in whichever order each rank has its parameter in memory.
        views = [part.view(p.shape) for p, part in zip(parameters, torch.split(flat, numbers), strict=True)]
        copies = {parameter: nn.Parameter(view) for parameter, view in zip(parameters, views, strict=True)}
        self.of_parameters.update(copies)
        is_bfloat16 = flat.dtype == torch.bfloat16 and self._compression is NoneCompressor
        compression = _Float32 if is_bfloat16 else self._compression

        def reduction() -> PendingReduction:
            missing = {parameters[number] for number in bucket.marks.missing}
            flat.zero_()
            self._step({parameter: copy for parameter, copy in copies.items() if parameter not in missing})
            sent, context = compression.compress(flat)
            bucket.marks.put_into(sent)
            yield _combine(sent, numbers, bucket.name)
            bucket.marks.read(sent)
            flat.copy_(compression.decompress(sent, context))
            self.unused.update(parameters[number] for number in bucket.marks.unused)

        return reduction

    @torch.no_grad()
    def _step(self, copies: Mapping[nn.Parameter, nn.Parameter]) -> None:
        """Let each copy become what the step would add to its parameter."""
        optimizer, groups = self._optimizer, vars(self._optimizer)["param_groups"]
        members, state = [group["params"] for group in groups], optimizer.state
        for parameter, copy in copies.items():
            copy.copy_(parameter)
            copy.grad = parameter.grad
            if parameter in state:
                state[copy] = state[parameter]
        try:
            for group in groups:
                group["params"] = [copies[parameter] for parameter in group["params"] if parameter in copies]
            optimizer._plain.step(optimizer)
        finally:
            for group, all_of_group in zip(groups, members, strict=True):
                group["params"] = all_of_group
            for parameter, copy in copies.items():
                copy.grad = None
                if copy in state:
                    state[parameter] = state.pop(copy)
        for parameter, copy in copies.items():
            copy.sub_(parameter)


class _Float32(Compressor):  # type: ignore[misc]
    """What is sent for bfloat16, which Horovod 0.28.1 cannot combine."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        return tensor.float(), None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: None) -> torch.Tensor:  # noqa: ARG004
        return tensor


def _combine(sent: torch.Tensor, numbers: list[int], name: str) -> Any:
    """Begin, in place. Horovod weighs each tensor of a group separately, in one message."""
    # A compressor of the user's, which has one parameter at a time, may have made any number of numbers of it.
    all_parts = [sent] if len(numbers) == 1 else torch.split(sent, numbers)
    parts = [part for part in all_parts if part.numel()]
    return mpi_ops.grouped_allreduce_async_(parts, name=name, op=mpi_ops.Adasum) if parts else None
