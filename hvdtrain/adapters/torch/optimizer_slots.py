"""What an optimizer keeps for each parameter, as named arrays "optimizer/PARAMETER/SLOT", and back."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hvdtrain.adapters.plain_values import NotPlainError, from_text, is_text, to_text
from hvdtrain.adapters.torch.optimizer_numbers import load_numbers, read_numbers
from hvdtrain.adapters.torch.state_checks import require_savable
from hvdtrain.adapters.torch.tensor_arrays import to_tensor, view_of_tensor
from hvdtrain.errors import UsageError
from hvdtrain.named_arrays import State

_NUMBER = "#number"  # marks a slot that was a Python number, so that it is loaded as one

Trained = tuple[torch.Tensor, Callable[[NDArray[Any]], NDArray[Any]]]
"""What an optimizer trains of a parameter, and what makes the same of an array of the parameter's shape."""


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
        if not isinstance(slot, str):
            raise _no_array(optimizer, slot, value)  # its name would come back as a text
        if isinstance(value, torch.Tensor):
            require_savable(f"{type(optimizer).__name__}'s {slot!r}", value)
            slots[key] = to_host(key, value)
        elif isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**63):
            slots[key + _NUMBER] = np.asarray(value)
        else:
            slots[key] = _text_of_slot(optimizer, slot, value)
    return slots


def _text_of_slot(optimizer: torch.optim.Optimizer, slot: str, value: object) -> NDArray[Any]:
    try:
        return to_text(value, view_of_tensor)
    except NotPlainError as error:
        raise _no_array(optimizer, slot, error.part) from error


def require_savable_slots(optimizer: torch.optim.Optimizer) -> None:
    """Raise `UsageError` if after its first step the optimizer keeps what cannot be saved."""
    for parameter in optimizer.state:
        if isinstance(parameter, torch.Tensor):
            slots_of(optimizer, "", parameter, lambda *_: np.empty(0))
    read_numbers(optimizer)


def _no_array(optimizer: torch.optim.Optimizer, slot: object, value: object) -> UsageError:
    return UsageError(
        f"{type(optimizer).__name__} keeps {slot!r} as an instance of {type(value).__name__}.",
        "A checkpoint holds tensors, numbers and texts by names, and collections of them, so that a resumed run would "
        "not continue this one.",
        "choose an optimizer whose state is tensors, one set a parameter.",
    )


def load_optimizer(trained: Mapping[str, Sequence[Trained]], optimizer: torch.optim.Optimizer, state: State) -> None:
    """Put back what `slots_of` and `read_numbers` returned.

    Args: `trained`: of each parameter by its name what the optimizer trains.
    """
    index_of = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    slots: dict[int, dict[str, Any]] = {}
    for name, its_parts in trained.items():
        prefix = f"optimizer/{name}/"
        arrays = {key.removeprefix(prefix): array for key, array in state.items() if key.startswith(prefix)}
        if arrays and any(id(part) not in index_of for part, _ in its_parts):
            raise not_trained(name)
        if arrays:
            for part, of in its_parts:
                slots[index_of[id(part)]] = dict(_slot(key, of(array)) for key, array in arrays.items())
    groups = optimizer.state_dict()["param_groups"]
    named = {key: value for key, value in optimizer.state.items() if not isinstance(key, torch.Tensor)}
    optimizer.load_state_dict({"state": {i: _tensors_in(saved) for i, saved in slots.items()}, "param_groups": groups})
    optimizer.state.update(named)  # torch has thrown away all that was there
    load_numbers(optimizer, state)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter, saved in ((parameters[index], saved) for index, saved in slots.items()):
        kept = optimizer.state[parameter]
        kept.update({slot: value for slot, value in saved.items() if not isinstance(value, torch.Tensor)})
        for slot, value in kept.items():
            exact = saved.get(slot)
            if isinstance(value, torch.Tensor) and isinstance(exact, torch.Tensor) and value.dtype != exact.dtype:
                value = kept[slot] = exact.to(value.device)  # torch gives all of them the parameter's dtype
            # Fused kernels go through memory, so that a slot must lie there as its parameter does (channels last, say).
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                kept[slot] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def _tensors_in(slots: Mapping[str, Any]) -> dict[str, Any]:
    """Select tensors and numbers: of texts and collections torch makes others when it loads them."""
    return {slot: value for slot, value in slots.items() if isinstance(value, torch.Tensor | bool | int | float)}


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
    return key, from_text(array, to_tensor) if is_text(array) else to_tensor(array)
