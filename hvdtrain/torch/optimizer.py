"""`hvd.DistributedOptimizer`: a torch optimizer whose gradients are reduced over ranks before it updates."""

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, cast

import torch
from horovod.common.util import split_list
from horovod.torch import mpi_ops
from horovod.torch.compression import Compression, FP16Compressor, NoneCompressor
from torch import nn

from hvdtrain.adapters.choose_sync import BUCKET_BYTES
from hvdtrain.adapters.torch.buckets import Together
from hvdtrain.adapters.torch.update import is_watched, untold_step
from hvdtrain.torch.adasum_optimizer import CombiningSteps, OwnSteps
from hvdtrain.torch.collectives import bounded
from hvdtrain.torch.compilation import not_compiled
from hvdtrain.torch.loop_gradients import LoopGradients, WrongOrderError, no_gradient
from hvdtrain.torch.optimizer_arguments import check_arguments, names_of
from hvdtrain.torch.reduction import Reduction
from hvdtrain.torch.sent_dtypes import as_summable
from hvdtrain.torch.start import require_start


class _Reducing:
    """The methods of a distributed optimizer, and what they need; see `DistributedOptimizer`."""

    _plain: Any  # the class of the optimizer
    _gradients: LoopGradients | None  # None: this rank has nobody to exchange gradients with
    _parameter_names: dict[nn.Parameter, str]
    _is_synchronizing = False
    _synchronized: bool
    _asked_to_synchronize: bool
    op: Any
    process_set: Any

    def __deepcopy__(self, memo: Any) -> Any:
        raise WrongOrderError(
            "A distributed optimizer was copied.",
            "Both would reduce the gradients of their parameters under the same names.",
            "copy the model, and make another optimizer for it.",
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups, whose gradients are reduced first if a whole backward pass has run.

        Who reads them between backward() and step(), as `GradScaler` does, may change gradients: these must be neither
        on their way nor this rank's alone.
        """
        if self._gradients is not None and self._gradients.are_complete and not self._is_synchronizing:
            self.synchronize()
            self._asked_to_synchronize = False
        groups: list[dict[str, Any]] = self.__dict__["param_groups"]
        return groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.__dict__["param_groups"] = groups

    def synchronize(self) -> None:
        """Wait until each parameter's `.grad` is reduced over all ranks. Collective.

        A parameter that no rank's loss has used gets zeros, as in Horovod, unless it is frozen.
        """
        was_read = self._synchronized and not self._asked_to_synchronize
        if was_read and (self._gradients is None or not self._gradients.is_pending):
            self._asked_to_synchronize = True  # who read param_groups has reduced them, maybe on this rank alone
            return
        if was_read and self.op != mpi_ops.Average:
            raise WrongOrderError(
                "Gradients were computed after optimizer.param_groups had been read, which reduced the earlier ones.",
                "The reduced ones would be reduced again, and only a mean of equal values stays what it is.",
                "read param_groups before the first backward() of an update, or after step().",
            )
        self._is_synchronizing = True
        try:
            if self._gradients is not None:
                self._finish(self._gradients)
                self._fill(self._gradients)
        finally:
            self._is_synchronizing = False
        self._synchronized = self._asked_to_synchronize = True

    def _fill(self, gradients: LoopGradients) -> None:
        trained = [parameter for parameter in gradients.parameters if parameter.requires_grad]
        if trained and all(parameter.grad is None for parameter in trained):
            raise no_gradient()
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def _finish(self, gradients: LoopGradients) -> None:
        """Reduce gradients of parameters too that were added, or no longer are frozen, since the last update."""
        known = set(gradients.parameters)
        new = [p for group in self.param_groups for p in group["params"] if p.requires_grad and p not in known]
        if new:
            self._parameter_names.update(
                (p, f"added.{len(self._parameter_names) + number}") for number, p in enumerate(new)
            )
            gradients.finish_with([(self._parameter_names[p], p) for p in new])
        else:
            gradients.finish()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """In this block, `step()` does not synchronize: `synchronize()` was called before."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters with reduced gradients. Collective, outside of `skip_synchronize`.

        Args: `closure`: computes the loss and its gradients; these are reduced, and the loss is averaged over ranks,
        each time that the optimizer calls it.
        """
        if closure is not None and self._should_synchronize and self._gradients is not None:
            return self._update(self._reduced(closure))
        if self._should_synchronize:
            is_pending = self._gradients is not None and self._gradients.is_pending
            if is_pending or not self._synchronized:
                self.synchronize()
            elif self._asked_to_synchronize:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). This can cause training slowdown. You may want to consider using "
                    "optimizer.skip_synchronize() context if you use optimizer.synchronize() in your code.",
                    stacklevel=2,
                )
        self._synchronized = False
        return self._update(closure)

    def _update(self, closure: Callable[[], Any] | None) -> Any:
        return untold_step(cast(torch.optim.Optimizer, self), self._plain.step)(self, closure)

    def _reduced(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def evaluate() -> Any:
            loss = closure()
            self.synchronize()
            self._synchronized = False
            return self._of_all_ranks(loss)

        return evaluate

    def _of_all_ranks(self, loss: Any) -> Any:
        """The loss that belongs to the reduced gradients, so that all ranks search alike: a tensor, or a number."""
        if not isinstance(loss, torch.Tensor | float | int):
            return loss
        op = mpi_ops.Sum if self.op == mpi_ops.Sum else mpi_ops.Average
        sent = loss.detach() if isinstance(loss, torch.Tensor) else torch.tensor(loss, dtype=torch.float64)
        found = bounded(mpi_ops.allreduce)(
            as_summable(sent), name="hvdtrain.closure.loss", op=op, process_set=self.process_set
        )
        return found.to(loss.dtype) if isinstance(loss, torch.Tensor) else found.item()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients. Raises `WrongOrderError`: after a backward pass whose gradients are being reduced."""
        if self._gradients is not None and self._gradients.is_pending:
            raise WrongOrderError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize().",
                "The gradients travel to the other ranks at that time.",
                "call step() or synchronize() first, or zero_grad() before backward().",
            )
        self._synchronized = False
        if set_to_none and _is_torchs(self._plain.zero_grad) and not is_watched(self):
            for group in self.__dict__["param_groups"]:  # torch's own tells a profiler, and takes three times as long
                for parameter in group["params"]:
                    parameter.grad = None
        else:
            self._plain.zero_grad(self, set_to_none)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """As the optimizer's own; gradients that were being reduced are given up."""
        if self._gradients is not None:
            self._gradients.forget()
        self._synchronized = False
        self._should_synchronize = True
        groups: list[dict[str, Any]] = self.__dict__["param_groups"]
        self._plain.load_state_dict(self, *args, **kwargs)
        for group, loaded in zip(groups, self.__dict__["param_groups"], strict=True):
            group.clear()
            group.update(loaded)
        self.param_groups = groups  # a scheduler that was made before wrapping changes these

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Expect so many backward passes of an update from now on."""
        self.backward_passes_per_step = passes
        if self._gradients is not None:
            self._gradients.passes = passes
            self._gradients.reset_passes()


_NOT_COMPILED: Final = not_compiled(lambda: None).__code__  # of the function that torch puts around its own `zero_grad`


def _is_torchs(zero_grad: Any) -> bool:
    """Whether nobody has put another one in its place."""
    return zero_grad is torch.optim.Optimizer.zero_grad and getattr(zero_grad, "__code__", None) is _NOT_COMPILED


def DistributedOptimizer(  # noqa: N802  Horovod's name, and its arguments
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, nn.Parameter]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = mpi_ops.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[list[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: Any = mpi_ops.global_process_set,
) -> torch.optim.Optimizer:
    """The optimizer, with gradients that are reduced over ranks in `step()`, or before it in `synchronize()`.

    Gradients travel in flat buckets that are summed in place, each as soon as its last gradient is ready in the
    backward pass. The result shares state and parameter groups with `optimizer`, and is an instance of its class.

    Args:
        optimizer: of torch's kind. It must not be stepped itself any more.
        named_parameters: names for messages, usually `model.named_parameters()`.
        compression: `hvd.Compression.none`, `.fp16`, or a class with compress(tensor) and decompress(tensor, context).
        backward_passes_per_step: backward passes whose gradients are added before they are reduced.
        op: `hvd.Average`, `Sum`, `Min`, `Max` or `Product` of gradients; or `Adasum` of what each rank's own
            step changes.
        gradient_predivide_factor: gradients are divided by it before the sum, and by size / it afterwards; with
            Average only.
        num_groups: an old name for `groups`.
        groups: which gradients travel in one message: how many groups, or lists of parameters; None: buckets by size.
        sparse_as_dense: make sparse gradients dense for the exchange, instead of gathering their rows.
        process_set: the ranks that exchange gradients.

    Raises:
        WrongArgumentError: names that are missing or not unique, or arguments that exclude each other.
        UsageError: before `hvd.init()`, or for an optimizer that is distributed already.
    """
    if num_groups != 0:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`.", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    check_arguments(optimizer, backward_passes_per_step, op, gradient_predivide_factor, groups, process_set)
    names = names_of(optimizer, named_parameters)
    require_start("hvd.DistributedOptimizer")
    as_dense = sparse_as_dense or op == mpi_ops.Adasum  # whose steps are dense
    reduction = Reduction(op, process_set, gradient_predivide_factor, compression, as_dense)
    return _wrapped(optimizer, names, reduction, backward_passes_per_step, groups)


def _wrapped(
    optimizer: torch.optim.Optimizer,
    names: dict[nn.Parameter, str],
    reduction: Reduction,
    passes: int,
    groups: int | list[list[torch.Tensor]] | None,
) -> torch.optim.Optimizer:
    plain = type(optimizer)
    # Horovod's `broadcast_optimizer_state` steps without a reduction what is defined in this module of its own.
    defined = {**vars(_Reducing), **(vars(CombiningSteps) if reduction.op == mpi_ops.Adasum else {})}
    methods = {name: value for name, value in defined.items() if name not in ("__dict__", "__weakref__")}
    methods |= {name: not_compiled(methods[name]) for name in ("step", "synchronize", "zero_grad")}
    namespace = {**methods, "_plain": plain, "__module__": "horovod.torch.optimizer"}
    result: Any = object.__new__(type(plain.__name__, (plain,), namespace))
    # The state and the groups are the same objects; `step` would be what a scheduler has put around the other one's.
    vars(result).update({name: value for name, value in vars(optimizer).items() if name != "step"})
    vars(optimizer)["_opt_called"] = True  # the result steps: a scheduler of the other one must not warn of that
    result._parameter_names, result._gradients = names, None
    result._synchronized = result._asked_to_synchronize = result._is_synchronizing = False
    result._should_synchronize = True
    result.backward_passes_per_step, result.op, result.process_set = passes, reduction.op, reduction.process_set
    if reduction.process_set.included() and (mpi_ops.size() > 1 or os.environ.get("HOROVOD_ELASTIC") == "1"):
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        cap, together = _cut(parameters, groups, reduction.compression)
        trainable = [(names[parameter], parameter) for parameter in parameters]
        kind = partial(OwnSteps, result) if reduction.op == mpi_ops.Adasum else LoopGradients
        result._gradients = kind(trainable, reduction, passes=passes, cap=cap, together=together)
    distributed: torch.optim.Optimizer = result
    return distributed


def _cut(
    parameters: Sequence[nn.Parameter], groups: int | list[list[torch.Tensor]] | None, compression: Any
) -> tuple[int, Together]:
    """Bytes of the largest bucket of several gradients, and which may share one."""
    if compression not in (NoneCompressor, FP16Compressor):
        return 1, lambda _: 0  # it may make something else of many gradients together than of each
    if groups is None:
        return BUCKET_BYTES, lambda _: 0
    parts = split_list(list(parameters), groups) if isinstance(groups, int) else groups
    group_of = {parameter: number for number, part in enumerate(parts) for parameter in part}
    return sys.maxsize, lambda parameter: group_of.get(parameter, parameter)
