"""The arguments of `hvd.DistributedOptimizer`: the names of parameters, and what is refused."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import torch
from horovod.torch import mpi_ops
from torch import nn

from hvdtrain.adapters.choose_sync import require_adasum
from hvdtrain.errors import UsageError

_OPS: Final = (mpi_ops.Average, mpi_ops.Sum, mpi_ops.Adasum, mpi_ops.Min, mpi_ops.Max, mpi_ops.Product)


class WrongArgumentError(UsageError, ValueError):
    """An argument of `DistributedOptimizer` that cannot be meant."""


class UnknownCombinationError(WrongArgumentError, NotImplementedError):
    """Arguments that Horovod refuses with a `NotImplementedError`."""


def names_of(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, nn.Parameter]] | None
) -> dict[nn.Parameter, str]:
    """A name for each parameter. Raises `WrongArgumentError`: names are missing, or not unique."""
    groups = optimizer.param_groups
    if named_parameters is None:
        return {p: f"noname.{i}.{j}" for i, group in enumerate(groups) for j, p in enumerate(group["params"])}
    named = [] if isinstance(named_parameters, nn.Module) else list(named_parameters)
    if isinstance(named_parameters, nn.Module) or not all(isinstance(each, tuple) for each in named):
        raise WrongArgumentError(
            "named_parameters should be a sequence of tuples (name, parameter).",
            "Messages are named after the parameters.",
            "give model.named_parameters().",
        )
    twice = [name for name, times in Counter(name for name, _ in named).items() if times > 1]
    if twice:
        raise WrongArgumentError(
            f"Parameter names in named_parameters must be unique, and these are not: {', '.join(twice)}.",
            "Gradients of different parameters would be taken for each other.",
            "give the parameters of each model a prefix of their own.",
        )
    names = {parameter: name for name, parameter in named}
    without = sum(parameter not in names for group in groups for parameter in group["params"])
    if without:
        raise WrongArgumentError(
            f"named_parameters was specified, and {without} parameters of the optimizer are not among them.",
            "They would not be exchanged by name.",
            "give named_parameters of the same model as to the optimizer, or leave named_parameters out.",
        )
    return names


def check_arguments(optimizer: Any, passes: int, op: Any, predivide: float, groups: Any, within: Any) -> None:
    """Raise `WrongArgumentError` for arguments that exclude each other, and an optimizer that is distributed."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise WrongArgumentError(
            f"hvd.DistributedOptimizer was given {optimizer!r}.",
            "It needs an optimizer object.",
            "give it an instance such as torch.optim.SGD(model.parameters(), lr=0.01).",
        )
    if hasattr(optimizer, "skip_synchronize"):
        raise WrongArgumentError(
            f"This {type(optimizer).__name__} is distributed already.",
            "Gradients would be reduced twice.",
            "call hvd.DistributedOptimizer once for each optimizer.",
        )
    if op not in _OPS:
        raise WrongArgumentError(
            f"op={op!r} is given.",
            "Gradients of all ranks are combined by one of Horovod's operations.",
            "give hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.",
        )
    if op == mpi_ops.Adasum and mpi_ops.is_initialized():
        require_adasum(
            mpi_ops, any(p.is_cuda for group in optimizer.param_groups for p in group["params"]), "op=hvd.Adasum"
        )
        _require_all_ranks(within)
    if predivide != 1.0 and op != mpi_ops.Average:
        raise WrongArgumentError(
            f"gradient_predivide_factor={predivide} is given, and op is not Average.",
            "It divides a mean's denominator into two factors.",
            "leave one of them out.",
        )
    if passes <= 0:
        raise WrongArgumentError(
            f"backward_passes_per_step is {passes}.", "An update needs a gradient.", "use 1 or more."
        )
    _check_groups(groups)


def _require_all_ranks(process_set: Any) -> None:
    if process_set != mpi_ops.global_process_set:
        raise UnknownCombinationError(
            "op=hvd.Adasum is given with a process set.",
            "Horovod combines steps of all ranks only.",
            "leave process_set out, or use another op.",
        )


def _check_groups(groups: Any) -> None:
    if groups is None or (isinstance(groups, int) and groups > 0):
        return
    members = [parameter for group in groups for parameter in group] if isinstance(groups, list) else [None]
    if not all(isinstance(parameter, torch.Tensor) for parameter in members) or len(set(members)) < len(members):
        raise WrongArgumentError(
            "groups is neither a positive number of groups nor lists of parameters in which each appears only once.",
            "Each gradient travels in one message.",
            "give a number, or lists of parameters of the model.",
        )
