"""A torch model and optimizer as named numpy arrays, and back. No pickle."""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hvdtrain.adapters.torch.host_copies import host_copies, to_array
from hvdtrain.errors import UsageError
from hvdtrain.state import NO_STATE, State

_OPTIONAL = inspect.Parameter("closure", inspect.Parameter.KEYWORD_ONLY, default=None)
_NUMBER = "#number"  # marks an optimizer slot that was a Python number, so that it is loaded as one


def read_state(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, earlier: Mapping[str, NDArray[Any]] = NO_STATE
) -> State:
    """Copies of "model/NAME" for the state_dict and "optimizer/PARAMETER/SLOT" for the optimizer.

    Args:
        earlier: a copy that nobody needs any more: its memory is used again.

    Raises:
        UsageError: the optimizer keeps something that is neither a tensor nor a number.
    """
    with host_copies(next(model.parameters(), torch.empty(0)).device) as copy:
        return _arrays(model, optimizer, lambda name, tensor: copy(tensor, earlier.get(name)))


def view_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """The same without copies of what is in host memory already: to be read before the next step."""
    return _arrays(model, optimizer, lambda _, tensor: tensor.numpy(force=True))


def _arrays(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, to_host: Callable[[str, torch.Tensor], NDArray[Any]]
) -> State:
    tensors = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    state: State = {name: to_host(name, tensor) for name, tensor in tensors.items()}
    for name, parameter in model.named_parameters():
        state |= slots_of(optimizer, name, parameter, to_host)
    return state


def slots_of(
    optimizer: torch.optim.Optimizer,
    name: str,
    trained: torch.Tensor,
    to_host: Callable[[str, torch.Tensor], NDArray[Any]],
) -> State:
    """What the optimizer keeps of the parameter `name`, which it trains as `trained`: "optimizer/NAME/SLOT"."""
    slots: State = {}
    for slot, value in optimizer.state.get(trained, {}).items():
        key = f"optimizer/{name}/{slot}"
        if isinstance(value, torch.Tensor):
            slots[key] = to_host(key, value)
        elif isinstance(value, bool | int | float):
            slots[key + _NUMBER] = np.asarray(value)
        elif value is not None:
            raise _no_array(optimizer, slot, value)
    return slots


Trained = tuple[torch.Tensor, Callable[[NDArray[Any]], NDArray[Any]]]
"""What an optimizer trains of a parameter, and what makes the same of an array of the parameter's shape."""


def load_state(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    state: State,
    trained: Mapping[str, Sequence[Trained]] | None = None,
) -> None:
    """Put `state` into model and optimizer: the optimizer first, so that it cannot change the weights.

    Args:
        trained: of each parameter by its name what the optimizer trains; None: the parameters.

    Raises:
        UsageError: names or shapes are not this model's.
    """
    if trained is None:
        trained = {name: [(parameter, lambda array: array)] for name, parameter in model.named_parameters()}
    _load_optimizer(trained, optimizer, state)
    weights: Any = OrderedDict(
        (name.removeprefix("model/"), _to_read(array)) for name, array in state.items() if name.startswith("model/")
    )
    weights._metadata = getattr(model.state_dict(), "_metadata", {})  # the versions of these very modules
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise UsageError(
            "The saved weights do not fit the model.",
            f"{error}",
            "build the model with the options it was saved with, or train from the start with --resume never.",
        ) from error


def drifting_buffers(model: torch.nn.Module) -> State:
    """Floating-point buffers that are saved: with BatchNorm each rank sees other samples, so they differ."""
    saved = model.state_dict().keys()
    buffers = ((name, b) for name, b in model.named_buffers() if name in saved and b.is_floating_point())
    return {f"model/{name}": to_array(buffer) for name, buffer in buffers}


@torch.no_grad()
def load_rank_local_state(model: torch.nn.Module, buffers: State) -> None:
    """Put back what `drifting_buffers` returned; other arrays are ignored."""
    own = {f"model/{name}": buffer for name, buffer in model.named_buffers()}
    for name in buffers.keys() & own.keys():
        own[name].copy_(to_tensor(buffers[name]))


def require_own_parameters(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise `UsageError` if it is no optimizer, or one that trains what is no part of the model."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(
            f"build_optimizer() returned {type(optimizer).__name__}.",
            "The training step calls an optimizer.",
            "return one torch.optim.Optimizer, with parameter groups where layers differ.",
        )
    if any(isinstance(p, torch.nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise UsageError(
            "build_model() returned a model whose lazy layers have no weights yet.",
            "What does not exist cannot be made equal on all workers.",
            "call the model once on a batch of zeros in build_model(), or give the layers their sizes.",
        )
    if inspect.signature(optimizer.step).parameters.get("closure", _OPTIONAL).default is inspect.Parameter.empty:
        raise UsageError(
            f"{type(optimizer).__name__} needs a closure that computes the loss again.",
            "A step here is one gradient, summed over workers, and one update.",
            "choose an optimizer whose step() needs none.",
        )
    own = {id(parameter) for parameter in model.parameters()}
    foreign = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in own]
    if foreign:
        raise UsageError(
            f"The optimizer trains {len(foreign)} tensor(s) that are no part of the model, "
            f"the first of shape {tuple(foreign[0].shape)}.",
            "They would be neither summed over workers nor saved.",
            "make them parameters of the module that build_model() returns.",
        )


def _no_array(optimizer: torch.optim.Optimizer, slot: str, value: object) -> UsageError:
    return UsageError(
        f"{type(optimizer).__name__} keeps {slot!r} as a {type(value).__name__}.",
        "A checkpoint holds tensors and numbers only, so that a resumed run would not continue this one.",
        "choose an optimizer whose state is tensors, one set a parameter.",
    )


def _load_optimizer(trained: Mapping[str, Sequence[Trained]], optimizer: torch.optim.Optimizer, state: State) -> None:
    index_of = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    slots: dict[int, dict[str, Any]] = {}
    for name, its_parts in trained.items():
        prefix = f"optimizer/{name}/"
        found = {key.removeprefix(prefix): array for key, array in state.items() if key.startswith(prefix)}
        if found and any(id(part) not in index_of for part, _ in its_parts):
            raise not_trained(name)
        if found:
            for part, of in its_parts:
                slots[index_of[id(part)]] = dict(_slot(key, of(array)) for key, array in found.items())
    optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})
    for parameter, own in optimizer.state.items():
        for slot, value in own.items():
            # Fused kernels go through memory, so that a slot must lie there as its parameter does (channels last, say).
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                own[slot] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def not_trained(name: str) -> UsageError:
    """A checkpoint has a state of the optimizer for this parameter."""
    return UsageError(
        f"The saved optimizer trained {name!r}, which this one does not.",
        "Its state would be lost.",
        "build the optimizer over the parameters it was saved with, or start again with --resume never.",
    )


def _slot(key: str, array: Any) -> tuple[str, Any]:
    if key.endswith(_NUMBER):
        return key.removesuffix(_NUMBER), array.item()
    return key, to_tensor(array)


def _to_read(array: Any) -> torch.Tensor:
    """The array itself as a tensor, or a copy if it is read-only, against which torch warns."""
    return torch.from_numpy(array) if array.flags.writeable else to_tensor(array)


def to_tensor(array: Any) -> torch.Tensor:
    """A copy: the array may be a read-only file map."""
    return torch.from_numpy(np.array(array))
