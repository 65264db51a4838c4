"""The state of a model, an optimizer, or anything else with a `state_dict`, as named arrays, and back. No pickle.

Tensors become arrays named by their place, as "model/layer1.weight" and "optimizer/state/0/exp_avg"; sparse ones become
two, of indices and values. What is around them is one array of text, "NAME/#rest".
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.parameter import is_lazy

from hvdtrain.adapters.plain_values import NotPlainError, from_text, mapping_like, to_text
from hvdtrain.adapters.torch.tensor_arrays import known_to_numpy, to_array, to_tensor, view_of
from hvdtrain.errors import UsageError
from hvdtrain.named_arrays import NO_STATE, State

ToHost = Callable[[str, torch.Tensor], NDArray[Any]]
"""The array of a tensor in host memory, given its name too."""

_REST: Final = "#rest"
_TENSOR: Final = "#tensor"
_SPARSE: Final = "#sparse"


def state_of(objects: Mapping[str, Any], earlier: Mapping[str, Any] = NO_STATE) -> State:
    """Copies of the states of objects, by the names under which the user gave them.

    Args: `earlier`: a copy that nobody needs any more: its memory is used again.

    Raises `UsageError`: a state has something else than tensors, arrays, numbers, texts and collections of them.
    """
    return _state(objects, lambda name, tensor: to_array(tensor, earlier.get(name)))


def view_of_state(objects: Mapping[str, Any]) -> State:
    """The same without copies of what is in host memory."""
    return _state(objects, lambda _, tensor: view_of(tensor))


def infinite_in(models: Mapping[str, torch.nn.Module]) -> frozenset[str]:
    """Names of weights and buffers that hold infinity, found where they are. Raises `UsageError`: as `state_of`."""
    found: State = {}
    for name, model in models.items():
        _without_tensors(model.state_dict(), name, _has_infinity, found)
    return frozenset(name for name, is_infinite in found.items() if is_infinite)


def _has_infinity(_: str, tensor: torch.Tensor) -> NDArray[Any]:
    has_values = not tensor.is_meta and not is_lazy(tensor)  # else a first forward pass makes them
    return np.asarray(has_values and bool(known_to_numpy(tensor).isinf().any()))


def _state(objects: Mapping[str, Any], to_host: ToHost) -> State:
    state: State = {}
    for name, thing in objects.items():
        require_state(name, thing)
        rest = _without_tensors(thing.state_dict(), name, to_host, state)
        try:
            state[f"{name}/{_REST}"] = to_text(rest, lambda _: None)
        except NotPlainError as error:
            raise UsageError(
                f"The state of {name} contains an instance of {type(error.part).__name__}.",
                "A checkpoint holds tensors, arrays, numbers and texts, and collections of them.",
                f"let state_dict() of {name} return such values, or leave it out of the checkpoint.",
            ) from error
    return state


def load_into(objects: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Put back what `state_of` has read. Raises `UsageError`: the checkpoint has other objects, or they do not fit."""
    saved = {key.removesuffix(f"/{_REST}") for key in state if key.endswith(f"/{_REST}")}
    if saved != objects.keys():
        raise UsageError(
            f"The checkpoint has the states of {', '.join(sorted(saved))}.",
            f"This program asks for those of {', '.join(sorted(objects))}.",
            "give Checkpoint the same objects by the same names.",
        )
    for name, thing in objects.items():
        saved_state = _with_tensors(from_text(state[f"{name}/{_REST}"], to_tensor), state)
        if isinstance(thing, torch.nn.Module):
            saved_state = OrderedDict(saved_state)
            # The versions of these very modules.
            vars(saved_state)["_metadata"] = getattr(thing.state_dict(), "_metadata", {})
        try:
            thing.load_state_dict(saved_state)
        except (RuntimeError, ValueError, KeyError) as error:
            raise UsageError(
                f"The saved state of {name} does not fit: {error}.",
                "It was saved by another model or optimizer.",
                "build what was trained before, or begin in another folder.",
            ) from error


def has_state(thing: Any) -> bool:
    """Whether an object gives its state as a dict, and takes it back."""
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def require_state(name: str, thing: Any) -> None:
    """Raise `UsageError` where an object cannot be saved and restored."""
    if not has_state(thing):
        raise UsageError(
            f"{name} is an instance of {type(thing).__name__}, which has no state_dict() and load_state_dict().",
            "A checkpoint saves by the one and restores by the other.",
            "give numbers and texts to save(step, NAME=value) instead, or write the two methods.",
        )


def _without_tensors(value: Any, path: str, to_host: ToHost, state: State) -> Any:
    """The value with a placeholder for each tensor, whose array is added to `state`."""
    if isinstance(value, torch.Tensor) and value.layout != torch.strided:
        return {_SPARSE: _without_tensors(_parts_of(value, path), f"{path}/{_SPARSE}", to_host, state)}
    if isinstance(value, torch.Tensor):
        key = path if path not in state else f"{path}#{len(state)}"
        state[key] = to_host(key, value)
        return {_TENSOR: key}
    if isinstance(value, dict):
        parts = {key: _without_tensors(part, f"{path}/{key}", to_host, state) for key, part in value.items()}
        return mapping_like(value, parts)
    if type(value) in (list, tuple):
        return type(value)(_without_tensors(part, f"{path}/{n}", to_host, state) for n, part in enumerate(value))
    return value


def _parts_of(tensor: torch.Tensor, path: str) -> list[Any]:
    """Of a sparse tensor with indices and values: these, its shape, and whether each index is there once."""
    if tensor.layout != torch.sparse_coo:
        raise UsageError(
            f"{path} is a tensor of the layout {tensor.layout}.",
            "Dense tensors can be saved and compared, and sparse ones of indices and values.",
            "keep it as tensor.to_sparse_coo(), or register it with persistent=False.",
        )
    tensor = tensor.detach()
    return [tensor._indices(), tensor._values(), list(tensor.shape), tensor.is_coalesced()]


def _with_tensors(value: Any, state: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            return to_tensor(state[value[_TENSOR]])
        if value.keys() == {_SPARSE}:
            indices, values, shape, is_coalesced = _with_tensors(value[_SPARSE], state)
            return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=is_coalesced, check_invariants=True)
        return mapping_like(value, {key: _with_tensors(part, state) for key, part in value.items()})
    if type(value) in (list, tuple):
        return type(value)(_with_tensors(part, state) for part in value)
    return value
