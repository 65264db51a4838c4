"""What Horovod's collectives are called with: tensors, a name where the caller gives none, ranks that are there."""

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, ParamSpec, TypeVar

import torch
from horovod.torch import mpi_ops

from hvdtrain.comm.collective_inputs import Tensors, require_tensors
from hvdtrain.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")

_unnamed: Final[Counter[int | None]] = Counter()
"""Of each process set: the collectives without a name that this rank has called in it since all ranks met."""

_TENSORS: Final = Tensors(
    lambda value: isinstance(value, torch.Tensor), "a torch tensor, as torch.tensor(value)", "tensor.reshape(1)"
)


class WrongProcessSetError(UsageError, ValueError):
    """A collective was given a process set that there is not, or a root outside of it."""


def completed(function: Callable[P, R]) -> Callable[P, R]:
    """A collective; where its caller gives it no name, it has the number of such calls on this rank in the process set.

    Horovod numbers by its handles, of which ranks have different numbers where some have had fewer batches, or are in
    other process sets.

    Raises:
        WrongProcessSetError: Horovod does not know the process set, or `root_rank` is not in it.
        WrongTensorError: it was given no tensor, or one without rows where it needs some.
    """
    parameters = inspect.signature(function).parameters
    optional = [name for name, parameter in parameters.items() if parameter.default is not parameter.empty]
    if not {"name", "process_set"}.intersection(optional):
        return function
    name_of, root_of = argument_reader(parameters, "name"), argument_reader(parameters, "root_rank")
    set_of = argument_reader(parameters, "process_set", mpi_ops.global_process_set)
    tensor_of, tensors_of = argument_reader(parameters, "tensor"), argument_reader(parameters, "tensors")
    takes_one = "tensor" in parameters
    name_place = list(parameters).index("name") if "name" in parameters else -1

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        process_set = set_of(arguments, named)
        given = (tensor_of(arguments, named),) if takes_one else tensors_of(arguments, named)
        require_tensors(function.__name__, given, _TENSORS)
        require_known(function.__name__, process_set)
        _require_root(function.__name__, process_set, root_of(arguments, named))
        if name_place < 0 or name_of(arguments, named) is not None:
            return function(*arguments, **named)
        name = next_name(f"{function.__name__}.unnamed", process_set)
        if len(arguments) > name_place:
            before, after = arguments[:name_place], arguments[name_place + 1 :]
            return function(*before, name, *after, **named)  # type: ignore[arg-type]
        return function(*arguments, **{**named, "name": name})  # type: ignore[arg-type]

    return call


def next_name(kind: str, process_set: Any) -> str:
    """Of a collective of all ranks of the process set, which call those without a name in the same order."""
    number = process_set.process_set_id
    _unnamed[number] += 1
    return f"{kind}.{number}.{_unnamed[number] - 1}"


def number_from_zero() -> None:
    """All ranks are here: `init` and `join` have waited for each other."""
    _unnamed.clear()


def number_set_from_zero(process_set: Any) -> None:
    """It is new, and may have the number of one that was removed, in which other ranks have called collectives."""
    del _unnamed[process_set.process_set_id]


def argument_reader(
    parameters: Mapping[str, inspect.Parameter], name: str, otherwise: Any = None
) -> Callable[[Sequence[Any], Mapping[str, Any]], Any]:
    """Finds this argument among those of a call. Args: `otherwise`: its value where there is none."""
    if name not in parameters:
        return lambda _arguments, _named: otherwise
    place, default = list(parameters).index(name), parameters[name].default
    if default is inspect.Parameter.empty:
        default = otherwise
    return lambda arguments, named: arguments[place] if len(arguments) > place else named.get(name, default)


def require_known(caller: str, process_set: Any) -> None:
    """Raises `WrongProcessSetError`: the set was removed. Args: `caller`: what was given it."""
    if process_set.process_set_id is None:
        raise WrongProcessSetError(
            f"{caller} was given a process set that Horovod does not know, of the ranks {process_set.ranks}.",
            "It was removed, or has not been added.",
            "call hvd.add_process_set(ranks) on all ranks, and use what it returns until it is removed.",
        )


def _require_root(collective: str, process_set: Any, root: int | None) -> None:
    if root is not None and process_set.ranks and root not in process_set.ranks:
        raise WrongProcessSetError(
            f"{collective} was given root_rank={root}, which is none of the {len(process_set.ranks)} ranks it is for.",
            "A rank that does not take part cannot send its values.",
            "give the number in the world of a rank that is in the process set.",
        )
