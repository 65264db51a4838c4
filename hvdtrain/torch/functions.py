"""The names of `horovod.torch.functions`, with a deadline."""

from collections.abc import Iterable
from dataclasses import dataclass
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
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,  # noqa: ARG001  Horovod's argument
) -> None:
    """Give all ranks the root's state of each parameter, and its options. Collective.

    Weights and gradients stay as they are, and whoever has another state, or none yet, gets the root's: Horovod would
    make some by a step with gradients of zero, which changes weights by weight decay and momentum.

    Raises `UsageError`: on all ranks; a rank has sparse state, or parameters of other shapes.
    """
    is_sparse = torch.tensor([int(_is_sparse_in(optimizer))])
    if bounded(mpi_ops.allreduce)(is_sparse, op=mpi_ops.Max, name="hvdtrain.optimizer.sparse").item():
        raise _sparse_state(optimizer)
    groups = optimizer.param_groups
    trained = [parameter for group in groups for parameter in group["params"]]
    options = [{key: value for key, value in group.items() if key != "params"} for group in groups]
    states = [
        {name: _described(value) for name, value in optimizer.state.get(parameter, {}).items()} for parameter in trained
    ]
    shapes = [[tuple(parameter.shape) for parameter in group["params"]] for group in groups]
    of_root, options, states = broadcast_object((shapes, options, states), root_rank, name="hvdtrain.optimizer")
    _require_same_parameters(of_root == shapes)
    if mpi_ops.rank() != root_rank:
        for group, its_options in zip(groups, options, strict=True):
            group.update(its_options)
        for parameter, state in zip(trained, states, strict=True):
            _make_room(optimizer, parameter, state)
    tensors = [
        (f"hvdtrain.optimizer.{number}.{name}", optimizer.state[parameter][name])
        for number, (parameter, state) in enumerate(zip(trained, states, strict=True))
        for name, value in state.items()
        if isinstance(value, _Described)
    ]
    broadcast_within(tensors, root_rank, mpi_ops.global_process_set)


@dataclass(frozen=True)
class _Described:
    """A tensor of a parameter's state."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    is_on_host: bool  # though the parameter may be elsewhere

    def room(self, parameter: torch.Tensor) -> torch.Tensor:
        """A tensor like it, in the parameter's memory layout where it has the same shape."""
        device = torch.device("cpu") if self.is_on_host else parameter.device
        if self.shape == tuple(parameter.shape):
            return torch.empty_like(parameter, dtype=self.dtype, device=device, requires_grad=False)
        return torch.empty(self.shape, dtype=self.dtype, device=device)


def _described(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return _Described(tuple(value.shape), value.dtype, value.device.type == "cpu")


def _make_room(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, described: dict[Any, Any]) -> None:
    """Give a parameter the root's state, of which tensors are still to be filled: own ones that fit, or new ones."""
    own = optimizer.state.pop(parameter, {})
    state = {}
    for name, value in described.items():
        fits = isinstance(value, _Described) and _described(own.get(name)) == value
        state[name] = own[name] if fits else value.room(parameter) if isinstance(value, _Described) else value
    if state:
        optimizer.state[parameter] = state


def _require_same_parameters(here: bool) -> None:
    differ = torch.tensor([int(not here)])
    if bounded(mpi_ops.allreduce)(differ, op=mpi_ops.Max, name="hvdtrain.optimizer.differ").item():
        raise UsageError(
            "The optimizers of the ranks have parameters of different numbers or shapes.",
            "A rank cannot have the state that belongs to another rank's parameters.",
            "build the same model on all ranks, and give the optimizer its parameters in the same order and groups.",
        ).on_all_ranks()


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
