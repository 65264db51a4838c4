"""What is taken as a `process_group`, and groups as in torch.distributed, which are sets of ranks of Horovod's."""

import functools
import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, ParamSpec, TypeVar

from horovod.torch import mpi_ops

from hvdtrain.comm.process_sets import formed_set
from hvdtrain.errors import UsageError
from hvdtrain.torch.call_arguments import argument_reader, require_known
from hvdtrain.torch.mpi_ops import add_process_set, remove_process_set
from hvdtrain.torch.start import require_start, start_count

P = ParamSpec("P")
R = TypeVar("R")

_more_uses: Final[Counter[tuple[int, int]]] = Counter()
"""Of each world's process sets by their numbers: how many groups stand for one beside the first one."""


def process_set_of(process_group: Any) -> Any:
    """The group, or all ranks for None.

    Raises `UsageError`: it is not one of Horovod's sets of ranks; `WrongProcessSetError`, which is one: not any more.
    """
    if process_group is None:
        return mpi_ops.global_process_set
    if not isinstance(process_group, mpi_ops.ProcessSet):
        raise UsageError(
            f"process_group is a {type(process_group).__name__}.",
            "Tensors travel through Horovod, which knows its own sets of ranks only.",
            "give a ProcessSet of hvd.add_process_set(ranks), or hvdtrain.torch.distributed.new_group(ranks).",
        )
    require_known("hvdtrain.torch", process_group)
    return process_group


def open_group(ranks: Iterable[int]) -> Any:
    """The group of these ranks: all of them, one more for a set that is there, or a new set. Collective."""
    wanted = sorted(ranks)
    if wanted == list(range(mpi_ops.size())):
        return mpi_ops.global_process_set
    group = formed_set(wanted)
    if group is not None:
        _more_uses[_key(group)] += 1
        return group
    group = add_process_set(wanted)
    del _more_uses[_key(group)]  # those of a set that had this number
    return group


def close_group(group: Any) -> None:
    """Let the group go, and its set with the last group that stands for it. Collective."""
    if not _more_uses[_key(process_set_of(group))]:
        remove_process_set(group)
        return
    _more_uses[_key(group)] -= 1
    group.process_set_id = None


def _key(group: Any) -> tuple[int, int]:
    return start_count(), group.process_set_id


def is_outside(group: Any) -> bool:
    """Whether this rank is in none of the ranks of an open group."""
    return group.included() is False


def for_members(collective: Callable[P, R]) -> Callable[P, R | None]:
    """`collective`, which a rank outside of its `group` leaves out with a warning, as in torch."""
    group_of = argument_reader(inspect.signature(collective).parameters, "group")

    @functools.wraps(collective)
    def call(*arguments: P.args, **named: P.kwargs) -> R | None:
        require_start("A collective of hvdtrain.torch.distributed")
        group = group_of(arguments, named)
        if group is None or not is_outside(process_set_of(group)):
            return collective(*arguments, **named)
        rank = mpi_ops.rank()
        text = f"{collective.__name__} was called on rank {rank}, which is not in the group, and does nothing there."
        warnings.warn(text, stacklevel=2)
        return None

    return call
