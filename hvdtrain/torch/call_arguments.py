"""What Horovod's collectives are called with: a name where the caller gives none."""

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, ParamSpec, TypeVar

from horovod.torch import mpi_ops

P = ParamSpec("P")
R = TypeVar("R")

_unnamed: Final[Counter[int | None]] = Counter()
"""Of each process set: the collectives without a name that this rank has called in it since all ranks met."""


def completed(function: Callable[P, R]) -> Callable[P, R]:
    """A collective; where its caller gives it no name, it has the number of such calls on this rank in the process set.

    Horovod numbers by its handles, of which ranks have different numbers where some have had fewer batches, or are in
    other process sets.
    """
    parameters = inspect.signature(function).parameters
    optional = [name for name, parameter in parameters.items() if parameter.default is not parameter.empty]
    if not {"name", "process_set"}.intersection(optional):
        return function
    name_of = _reader(parameters, "name")
    set_of = _reader(parameters, "process_set", mpi_ops.global_process_set)
    name_place = list(parameters).index("name") if "name" in parameters else -1

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        process_set = set_of(arguments, named)
        if len(arguments) <= name_place and name_of(arguments, named) is None:
            named["name"] = next_name(f"{function.__name__}.unnamed", process_set)
        return function(*arguments, **named)

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


def _reader(
    parameters: Mapping[str, inspect.Parameter], name: str, otherwise: Any = None
) -> Callable[[Sequence[Any], Mapping[str, Any]], Any]:
    """Finds this argument among those of a call. Args: `otherwise`: its value where there is none."""
    if name not in parameters:
        return lambda _arguments, _named: otherwise
    place, default = list(parameters).index(name), parameters[name].default
    if default is inspect.Parameter.empty:
        default = otherwise
    return lambda arguments, named: arguments[place] if len(arguments) > place else named.get(name, default)
