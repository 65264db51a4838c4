"""The names of `horovod.torch.functions`, with a deadline."""

from collections.abc import Iterable
from typing import Any

import torch
from horovod.torch import functions as _horovod
from horovod.torch import mpi_ops

from hvdtrain.errors import UsageError
from hvdtrain.torch.collectives import bounded, submitted, synchronize
from hvdtrain.torch.sent_dtypes import as_known, require_dense

allgather_object = bounded(_horovod.allgather_object)
broadcast_object = bounded(_horovod.broadcast_object)
_begin_broadcast = submitted(mpi_ops.broadcast_async_)
_broadcast_optimizer_state = bounded(_horovod.broadcast_optimizer_state)


class WrongParametersError(UsageError, ValueError):
    """What was given to `broadcast_parameters` has no tensors with names."""


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Give all ranks the root's tensors, of any dtype and memory layout. Collective.

    Args:
        params: a dict of tensors, as `model.state_dict()`, of which other values are left alone; or a list of tensors,
            or of pairs of name and tensor.
        root_rank: whose values all get.

    Raises `UsageError`: there are no tensors with names, or one is sparse.
    """
    broadcast_within(params, root_rank, mpi_ops.global_process_set)


def broadcast_within(params: Any, root_rank: int, process_set: Any) -> None:
    """The same for the ranks of a process set, of which the root is one; `root_rank` is its number in the world."""
    pending, named = [], _named(params)
    for name, tensor in named:
        require_dense(name, tensor)
    for name, tensor in named:
        bits = as_known(tensor.detach())
        sent = bits.contiguous()
        pending.append((_begin_broadcast(sent, root_rank, name, process_set=process_set), bits, sent))
    for handle, bits, sent in pending:
        synchronize(handle)
        if sent is not bits:
            bits.copy_(sent)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Give all ranks the root's optimizer state and options. Collective.

    Where an optimizer has no state yet, Horovod makes some by a step with gradients of zero. By weight decay that would
    change the weights, and momentum: these are put back. The gradients remain, as in Horovod.

    Raises `UsageError`: on all ranks; a rank has sparse state.
    """
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    had_state = len(optimizer.state) > 0
    known = torch.tensor([int(had_state), int(_is_sparse_in(optimizer))])
    somebody, sparse = bounded(mpi_ops.allreduce)(known, op=mpi_ops.Max, name="hvdtrain.optimizer.has_state").tolist()
    if sparse:
        raise _sparse_state(optimizer)
    kept = [] if had_state else [(parameter, parameter.detach().clone()) for parameter in trained]
    _broadcast_optimizer_state(optimizer, root_rank, model)
    with torch.no_grad():
        for parameter, value in kept:
            parameter.copy_(value)
    if not somebody:
        optimizer.state.clear()


def _is_sparse_in(optimizer: torch.optim.Optimizer) -> bool:
    values = (value for state in optimizer.state.values() if isinstance(state, dict) for value in state.values())
    return any(isinstance(value, torch.Tensor) and value.layout != torch.strided for value in values)


def _sparse_state(optimizer: torch.optim.Optimizer) -> UsageError:
    error = UsageError(
        f"The state of {type(optimizer).__name__} has a sparse tensor, as momentum of sparse gradients is one.",
        "All ranks were to get that of one rank, and Horovod sends dense tensors.",
        "let hvd.Checkpoint(optimizer=…).restore() give all ranks the state, or use sparse=False in the embedding.",
    )
    return error.on_all_ranks()


def _named(params: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(params, dict):
        return sorted((name, value) for name, value in params.items() if isinstance(value, torch.Tensor))
    if isinstance(params, Iterable):
        listed = [each if isinstance(each, tuple) else (f"parameter.{n}", each) for n, each in enumerate(params)]
        if all(isinstance(tensor, torch.Tensor) for _, tensor in listed):
            return listed
    raise WrongParametersError(
        f"broadcast_parameters was given an instance of {type(params).__name__} without tensors.",
        "It sends tensors by their names.",
        "give model.state_dict(), or model.named_parameters().",
    )
