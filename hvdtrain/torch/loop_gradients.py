"""The gradients of a training loop that hvdtrain does not run, in the same buckets as those of a `Task`.

A loop may look at gradients after the update, add to them in further backward passes, freeze or add parameters, and
wrap another optimizer around the same model. So gradients stay until the loop clears them.
"""

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from horovod.torch import mpi_ops
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from hvdtrain.adapters.choose_sync import BUCKET_BYTES, only_dense
from hvdtrain.adapters.torch.buckets import Bucket, Together, Trainable, make_buckets
from hvdtrain.adapters.torch.comm_hooks import CommHook
from hvdtrain.adapters.torch.gradient_sync import SummedGradients
from hvdtrain.errors import PeerError, UsageError
from hvdtrain.torch.agreement import compare, reduce_integers, warn_of_unequal_weights
from hvdtrain.torch.collectives import bounded, wait_for
from hvdtrain.torch.compilation import not_compiled
from hvdtrain.torch.reduction import Reduction
from hvdtrain.torch.start import meeting_count, start_count

_AGREE: Final = "hvdtrain.agree"
_next_number: Final = [0]  # of the next object in this process, in the names of its collectives
_owners: Final = WeakTensorKeyDictionary()  # of each parameter: a weak reference to the one that reduces its gradient


class WrongOrderError(UsageError, AssertionError):
    """The loop calls backward(), synchronize(), step() and zero_grad() in an order that cannot work."""


class LoopGradients(SummedGradients):
    """Reduces gradients over ranks, in buckets that start when their last gradient is ready.

    The parameters belong to the last object that was made for them; an earlier one cannot be used any more. In the
    first update of a world, and in that after a `join`, no bucket starts before `finish`, where ranks first compare
    their parameters, and learn which of them have sparse gradients: these are gathered as rows. What has begun in a
    world is given up when another one has begun.

    Args:
        trainable: names and parameters, in the model's order; equal on all ranks.
        reduction: the rule, and the ranks.
        hook: what is sent for a bucket; None: what the rule says.
        passes: backward passes from one reduction to the next.
        together: see `grouped`.

    Attributes:
        held: buckets do not start before `finish`.
        passes: as the argument; may be changed between updates, before `reset_passes`.
    """

    _passes_hint = (  # where a gradient is added to too often
        "call step() or synchronize() first, or give DistributedOptimizer(backward_passes_per_step=…) the number "
        "of backward passes of an update. A model that another one's loss goes through, as in a GAN, is left alone "
        "within model.requires_grad_(False)."
    )

    def __init__(
        self,
        trainable: Trainable,
        reduction: Reduction,
        hook: CommHook | None = None,
        passes: int = 1,
        cap: int = BUCKET_BYTES,
        together: Together = lambda _: 0,
    ) -> None:
        self._reduction, self._together, self.passes = reduction, together, passes
        self._prefix = _AGREE
        self._left: dict[nn.Parameter, int] = {}
        self._everything, self._sparse = trainable, list[tuple[str, nn.Parameter]]()
        self._came_sparse: set[nn.Parameter] = set()  # in this update, and are dense while they are exchanged
        self._world = start_count()
        self._agreed_in: int | None = None  # the number of the meeting of all ranks before
        self.held = False
        super().__init__(trainable, hook or reduction.hook(), wait_for, cap)
        self._finish_all = bounded(super().finish, "hvdtrain.gradients")

    @property
    def is_pending(self) -> bool:
        """Whether a backward pass has run since the last `finish`."""
        return self._world == start_count() and any(left != self.passes for left in self._left.values())

    @property
    def are_complete(self) -> bool:
        """Whether all backward passes of an update have run for each parameter that took part in them."""
        lefts = set(self._left.values())
        return self._world == start_count() and 0 in lefts and lefts <= {0, self.passes}

    @property
    def trainable(self) -> Trainable:
        """Names and parameters, in an order that does not tell which of them the ranks have found to be sparse."""
        return self._everything

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All whose gradients are reduced."""
        return [parameter for _, parameter in self.trainable]

    def set_trainable(self, trainable: Trainable) -> None:
        """As in `SummedGradients`; gradients that parameters have remain theirs, and ranks compare them again."""
        self._everything, self._sparse, self._agreed_in = trainable, [], None
        self._use(trainable)

    def _use(self, trainable: Trainable) -> None:
        kept = [(parameter, parameter.grad) for _, parameter in [*self._trainable, *trainable]]
        super().set_trainable(trainable)
        for parameter, gradient in kept:
            parameter.grad = gradient

    def _cut(self) -> list[Bucket]:
        self._take_over()
        self.reset_passes()
        self._kinds = {parameter: (parameter.dtype, parameter.device) for parameter in self.parameters}
        return make_buckets(self._trainable, self._hook, self._cap, self._prefix, self._together)

    def _take_over(self) -> None:
        for parameter in self.parameters:
            before = _owners.get(parameter)  # type: ignore[no-untyped-call]
            owner = before() if before is not None else None
            if owner is not None and owner is not self:
                owner.release()
            _owners[parameter] = weakref.ref(self)

    def release(self) -> None:
        """Take the hooks off all parameters, for another object that reduces their gradients."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._buckets = [], []

    def reset_passes(self) -> None:
        """Expect as many backward passes as after an update."""
        self._left = dict.fromkeys(self.parameters, self.passes)

    def _on_gradient(self, bucket: Bucket) -> Callable[[nn.Parameter], None]:
        def hook(parameter: nn.Parameter) -> None:
            self._forget_last_world()
            is_last = self._is_last_pass(parameter)
            if bucket.has_begun:
                raise self._too_many_passes(parameter)
            if parameter.grad is not None and parameter.grad.is_sparse:
                self._came_sparse.add(parameter)
            if not self._has_agreed:
                return
            bucket.take(parameter)
            if is_last and bucket.is_full(parameter) and not self.held:
                self._on_full(bucket)

        return not_compiled(hook)

    def _is_last_pass(self, parameter: nn.Parameter) -> bool:
        """Whether no other backward pass of this update adds to the gradient that is there now."""
        left = self._left[parameter] = self._left[parameter] - 1
        if left < 0:
            raise self._too_many_passes(parameter)
        return left == 0

    def set_hook(self, hook: CommHook) -> None:
        """Send by this hook from now on. Between updates."""
        self._hook = hook
        self._use(self._trainable)

    def finish(self) -> None:
        """Reduce all gradients of the backward passes since the last time, and wait for them. Collective.

        A parameter that no rank's loss has used has no gradient; where the hook does not know that, it has zeros.
        """
        self._require_hooks()
        self._require_same_kinds()
        self._forget_last_world()
        if not self._has_agreed:
            self._agree()
        for bucket in self._buckets:
            if bucket.has_begun and bucket.was_changed:
                raise self._changed_while_sent()
            if not bucket.has_begun:  # the loop may have set or replaced gradients
                for parameter in bucket.parameters:
                    bucket.take(parameter)
        rows = [(parameter, self._reduction.sparse(parameter, f"{self._prefix}.{n}")) for n, parameter in self._sparse]
        self._finish_all()
        for parameter, wait in rows:
            parameter.grad = wait()
        for parameter in self._came_sparse:
            if parameter.grad is not None and not parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_sparse()
        self._expect()

    def finish_with(self, new: Trainable) -> None:
        """As `finish`, and for parameters that are reduced from this update on. Collective.

        They are alone this time: gradients of the others may have been summed in place already. Not so before ranks
        have compared their parameters, of which some may know the new ones already: they have trained with ranks that
        had joined.
        """
        if not self._has_agreed:
            self.set_trainable([*self.trainable, *new])
            self.finish()
            return
        self.finish()
        kept = [(parameter, parameter.grad) for _, parameter in new]
        alone = LoopGradients(new, self._reduction, passes=self.passes, cap=self._cap, together=self._together)
        for parameter, gradient in kept:
            parameter.grad = gradient
        alone._came_sparse.update(p for p, gradient in kept if gradient is not None and gradient.is_sparse)
        alone.finish()
        self.set_trainable([*self.trainable, *new])

    def forget(self) -> None:
        """Give up the reductions that have begun, after they have ended or failed: the state has been replaced."""
        for bucket in self._buckets:
            with suppress(PeerError, UsageError):  # of the failure itself the loop knows already
                bucket.give_up(self._wait)
        self._expect()

    def _forget_last_world(self) -> None:
        """After the loss of a rank, whether `finish`, a hook or another collective of the backward pass has failed."""
        if self._world != start_count():
            self._world = start_count()
            self.forget()

    def _expect(self) -> None:
        for bucket in self._buckets:
            bucket.rearm()
        self._came_sparse.clear()
        self.reset_passes()

    def _agree(self) -> None:
        """Compare the parameters of all ranks, and find those with sparse gradients. Collective.

        By sums, since these work where some ranks have called `hvd.join()`: such a rank adds zeros.
        """
        within = self._reduction.process_set
        compare(self.trainable, within)
        warn_of_unequal_weights(self.trainable, within)
        sparse = set() if self._reduction.sparse_as_dense else self._came_sparse.union(p for _, p in self._sparse)
        found = reduce_integers([int(p in sparse) for p in self.parameters], "sparse", within)
        self._sparse = [named for named, count in zip(self.trainable, found, strict=True) if count]
        if self._sparse and not self._reduction.is_sum:
            raise only_dense("torch.sparse_coo").on_all_ranks()  # before any bucket begins
        # Names that no other optimizer has, whether or not all ranks have made equally many in worlds before.
        (number,) = reduce_integers([_next_number[0]], "number", within, mpi_ops.Max)
        _next_number[0] = number + 1
        self._prefix = f"hvdtrain.gradients.{number}"
        self._use([named for named, count in zip(self.trainable, found, strict=True) if not count])
        self._agreed_in = meeting_count()

    @property
    def _has_agreed(self) -> bool:
        return self._agreed_in == meeting_count()

    def _require_hooks(self) -> None:
        if not self._hooks and self._trainable:
            raise WrongOrderError(
                "Another distributed optimizer or model was made for the parameters of this one.",
                "A gradient can be reduced by one of them only, and the last one does it.",
                "use the last one, or make each where its phase of the training begins.",
            )

    def _require_same_kinds(self) -> None:
        changed = [name for name, p in self.trainable if (p.dtype, p.device) != self._kinds[p]]
        if changed:
            raise WrongOrderError(
                f"The dtype or the device of {changed[0]} was changed after it was wrapped.",
                "Its gradient would be exchanged as what it was before.",
                "call model.double() or model.to(device) first, then make the distributed optimizer or model.",
            )

    def _too_many_passes(self, parameter: nn.Parameter) -> WrongOrderError:
        name = next((name for name, known in self._trainable if known is parameter), "a parameter")
        return WrongOrderError(
            f"A gradient of {name} was computed more often than {self.passes} times between two updates.",
            "After so many backward passes the gradients travel already, and what is added later would be lost.",
            self._passes_hint,
        )

    def _changed_while_sent(self) -> WrongOrderError:
        return WrongOrderError(
            "Gradients were changed after backward() and before synchronize().",
            "They travel to the other ranks at that time, and ranks would update with different values.",
            "call optimizer.synchronize() before gradients are clipped or changed, and update in "
            "`with optimizer.skip_synchronize():`.",
        )


def no_gradient() -> WrongOrderError:
    """What ends an update on all ranks."""
    error = WrongOrderError(
        "step() or synchronize() was called, and no rank has computed a gradient.",
        "There is nothing to update with.",
        "call backward() on the loss first, with parameters of this optimizer in it.",
    )
    return error.on_all_ranks()
