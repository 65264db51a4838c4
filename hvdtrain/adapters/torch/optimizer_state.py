"""What an optimizer keeps, as named arrays, and back.

Of each parameter they are "optimizer/PARAMETER/SLOT". What it keeps besides is in its groups, in its attributes, or
under a name in `state`: Prodigy and D-adaptation keep their estimate of the learning rate so, schedule-free optimizers
their counts. Of that only what has changed since the start is saved: a resumed run has the options that it is given,
except where training (or a callback) has changed them. "lr" is left out, because it is a function of the step.
"""

import logging
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from hvdtrain.adapters.plain_values import NotPlainError, from_text, is_text, to_text
from hvdtrain.adapters.torch.state_checks import require_savable
from hvdtrain.adapters.torch.tensor_arrays import to_tensor, view_of, view_of_tensor
from hvdtrain.errors import UsageError
from hvdtrain.named_arrays import State

_NUMBER = "#number"  # marks a slot that was a Python number, so that it is loaded as one

Trained = tuple[torch.Tensor, Callable[[NDArray[Any]], NDArray[Any]]]
"""What an optimizer trains of a parameter, and what makes the same of an array of the parameter's shape."""

NAME: Final = "optimizer/#numbers"
"""Of the one array of a state that has all of these values."""

_Place = tuple[str | int, ...]
"""("group", index, key), ("attribute", name) or ("state", key)."""

_NO_STATE: Final = (type, types.ModuleType, torch.dtype, torch.device, torch.layout, torch.nn.Parameter)
_HAS_STATE: Final = (torch.optim.Optimizer, torch.nn.Module, torch.Generator)
_WARNED: Final = "_warned_capturable_if_run_uncaptured"

_at_start: WeakKeyDictionary[torch.optim.Optimizer, dict[_Place, NDArray[Any]]] = WeakKeyDictionary()
_log = logging.getLogger("hvdtrain.run")


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
        "build the optimizer over the parameters it was saved with, or start in another --output-dir.",
    )


def _slot(key: str, array: Any) -> tuple[str, Any]:
    if key.endswith(_NUMBER):
        return key.removesuffix(_NUMBER), array.item()
    return key, from_text(array, to_tensor) if is_text(array) else to_tensor(array)


def remember_start(optimizer: torch.optim.Optimizer) -> None:
    """What the optimizer keeps from now on counts as changed if it differs from this.

    Raises `UsageError`: it keeps something whose state cannot be saved.
    """
    _at_start[optimizer] = dict(_texts(optimizer, warns=True))


def read_numbers(optimizer: torch.optim.Optimizer) -> State:
    """What has changed since `remember_start`; nothing if it was not called.

    Raises `UsageError`: as `remember_start`.
    """
    start = _at_start.get(optimizer)
    if start is None:
        return {}
    values = dict(_values(optimizer))
    changed = {place: values[place] for place, text in _texts(optimizer) if start.get(place) != text}
    return {NAME: to_text(changed, _array)} if changed else {}


def load_numbers(optimizer: torch.optim.Optimizer, state: State) -> None:
    """Put back what `read_numbers` returned; what it did not return becomes what it was at the start.

    Raises `UsageError`: the optimizer has fewer groups than the one whose numbers were saved.
    """
    start = _at_start.get(optimizer)
    if start is None:
        return
    device = next((p.device for group in optimizer.param_groups for p in group["params"]), torch.device("cpu"))

    def on_device(array: NDArray[Any]) -> torch.Tensor:
        return to_tensor(array).to(device) if array.ndim else to_tensor(array)  # optimizers keep counts on the host

    saved: dict[_Place, Any] = from_text(state[NAME], on_device) if NAME in state else {}
    present = dict(_texts(optimizer))
    for place in present.keys() - start.keys() - saved.keys():
        del _keeper(optimizer, place)[place[-1]]
    for place, text in start.items():
        if place not in saved and present.get(place) != text:
            _keeper(optimizer, place)[place[-1]] = from_text(text, on_device)
    for place, value in saved.items():
        _keeper(optimizer, place)[place[-1]] = value


@cache
def _attributes_of_torch() -> frozenset[str]:
    """Which torch's own classes set for themselves; they follow from the options."""
    return frozenset(vars(torch.optim.SGD([torch.zeros(1)], lr=1.0, fused=True))) | {_WARNED}


def _values(optimizer: torch.optim.Optimizer) -> Iterator[tuple[_Place, Any]]:
    for index, group in enumerate(optimizer.param_groups):
        yield from ((("group", index, key), value) for key, value in group.items() if key not in ("params", "lr"))
    attributes = ((key, value) for key, value in vars(optimizer).items() if key not in _attributes_of_torch())
    yield from ((("attribute", key), value) for key, value in attributes)
    named = ((key, value) for key, value in optimizer.state.items() if not isinstance(key, torch.Tensor))
    yield from ((("state", key), value) for key, value in named)  # type: ignore[misc]  # torch says that keys are tensors


def _keeper(optimizer: torch.optim.Optimizer, place: _Place) -> dict[Any, Any]:
    """The dict that has the value of a place under the place's last part."""
    if place[0] == "attribute":
        return vars(optimizer)
    if place[0] == "state":
        return optimizer.state
    if int(place[1]) >= len(optimizer.param_groups):
        raise UsageError(
            f"The saved optimizer kept {place[2]!r} in its parameter group {place[1]}.",
            f"This one has {len(optimizer.param_groups)} groups, counted from 0.",
            "build it with the groups it was saved with, or start in another --output-dir.",
        )
    return optimizer.param_groups[int(place[1])]


def _texts(optimizer: torch.optim.Optimizer, warns: bool = False) -> Iterator[tuple[_Place, NDArray[Any]]]:
    """The text of each value that can be saved; others are not state, are refused, or are warned of at the start."""
    for place, value in _values(optimizer):
        try:
            yield place, to_text(value, _array)
        except NotPlainError as error:
            _require_no_state(optimizer, place, error.part)
            if warns and not _never_changes(error.part):
                kind, called, where = type(optimizer).__name__, type(error.part).__name__, _described(place)
                _log.warning("%s keeps an instance of %s in %s: it is not saved in checkpoints.", kind, called, where)


def _never_changes(part: object) -> bool:
    parameters = getattr(type(part), "__dataclass_params__", None)
    is_frozen = parameters is not None and parameters.frozen
    return is_frozen or isinstance(part, _NO_STATE) or callable(part)


def _array(value: Any) -> NDArray[Any] | None:
    """Weights are saved with the model."""
    is_state = isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
    return view_of(value) if is_state else None


def _require_no_state(optimizer: torch.optim.Optimizer, place: _Place, part: object) -> None:
    shared = isinstance(part, torch.optim.Optimizer) and part.state is optimizer.state
    if isinstance(part, _HAS_STATE) and not shared:
        raise UsageError(
            f"{type(optimizer).__name__} keeps an instance of {type(part).__name__} in {_described(place)}.",
            "What that one keeps would not be saved, so that a resumed run would not continue this one.",
            "choose an optimizer that keeps its state as tensors and numbers.",
        )


def _described(place: _Place) -> str:
    if place[0] == "group":
        return f"{place[2]!r} of parameter group {place[1]}"
    return f"the attribute {place[1]!r}" if place[0] == "attribute" else f"state[{place[1]!r}]"
