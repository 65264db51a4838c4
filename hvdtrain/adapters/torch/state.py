"""A torch model and optimizer as named numpy arrays, and back. No pickle."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from numpy.typing import NDArray

from hvdtrain.adapters.plain_values import NotPlainError, from_text, is_text, to_text
from hvdtrain.adapters.torch.optimizer_state import Trained, load_optimizer, read_numbers, remember_start, slots_of
from hvdtrain.adapters.torch.state_checks import require_savable_model, require_usable_optimizer, warn_of_unsaved
from hvdtrain.adapters.torch.tensor_arrays import (
    host_copies,
    known_to_numpy,
    tensor_of,
    to_array,
    to_tensor,
    view_of,
    view_of_tensor,
)
from hvdtrain.errors import UsageError
from hvdtrain.named_arrays import NO_STATE, State

ToHost = Callable[[str, torch.Tensor], NDArray[Any]]
"""The array of a tensor in host memory, given its name in a state too."""

_EXTRA: Final = torch.nn.modules.module._EXTRA_STATE_KEY_SUFFIX  # ends the name of what get_extra_state() returned


def read_state(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, earlier: Mapping[str, NDArray[Any]] = NO_STATE
) -> State:
    """Copies of "model/NAME" for the state_dict and "optimizer/PARAMETER/SLOT" for the optimizer.

    Args: `earlier`: a copy that nobody needs any more: its memory is used again.

    Raises `UsageError`: the optimizer or a module keeps something that cannot be saved.
    """
    warn_of_unsaved(model)
    with host_copies(next(model.parameters(), torch.empty(0)).device) as copy:
        return _arrays(model, optimizer, lambda name, tensor: copy(tensor, earlier.get(name)))


def view_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """The same without copies of what is in host memory already: to be read before the next step."""
    return _arrays(model, optimizer, lambda _, tensor: view_of(tensor))


def view_weights(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> State:  # noqa: ARG001
    """View the weights and buffers alone: the optimizer's arrays are not copied from a GPU."""
    return _weights(model, lambda _, tensor: view_of(tensor))


def _arrays(model: torch.nn.Module, optimizer: torch.optim.Optimizer, to_host: ToHost) -> State:
    state = _weights(model, to_host)
    for name, parameter in model.named_parameters():
        state |= slots_of(optimizer, name, parameter, to_host)
    return state | read_numbers(optimizer)


def _weights(model: torch.nn.Module, to_host: ToHost) -> State:
    state: State = {}
    for name, value in model.state_dict().items():
        key = f"model/{name}"
        state[key] = to_host(key, value) if isinstance(value, torch.Tensor) else _extra_text(name, value)
    return state


def _extra_text(name: str, value: object) -> NDArray[Any]:
    try:
        return to_text(value, view_of_tensor)
    except NotPlainError as error:
        path = name.rpartition(".")[0]
        whose = f"the model's {path!r}" if path else "the model itself"
        raise UsageError(
            f"get_extra_state() of {whose} returned an instance of {type(error.part).__name__}.",
            "A checkpoint holds tensors, numbers and texts, and collections of them.",
            "return such values, and make the object of them in set_extra_state().",
        ) from error


def load_state(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    state: State,
    trained: Mapping[str, Sequence[Trained]] | None = None,
) -> None:
    """Put `state` into model and optimizer: the optimizer first, so that it cannot change the weights.

    Args: `trained`: of each parameter by its name what the optimizer trains; None: the parameters.

    Raises `UsageError`: names or shapes are not this model's.
    """
    if trained is None:
        trained = {name: [(parameter, lambda array: array)] for name, parameter in model.named_parameters()}
    load_optimizer(trained, optimizer, state)
    weights: Any = OrderedDict(
        (name.removeprefix("model/"), _to_read(array)) for name, array in state.items() if name.startswith("model/")
    )
    weights._metadata = getattr(model.state_dict(), "_metadata", {})  # the versions of these very modules
    _fit_buffers(model, weights)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise UsageError(
            "The saved weights do not fit the model.",
            f"{error}",
            "build the model with the options it was saved with, or start in another --output-dir.",
        ) from error


def _fit_buffers(model: torch.nn.Module, weights: Mapping[str, Any]) -> None:
    """Give the model buffers of the saved shapes and dtypes, where training has made others of the first ones."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    for path, module in model.named_modules(remove_duplicate=False):
        for name, buffer in module._buffers.items():
            saved = weights.get(f"{path}.{name}" if path else name)
            if not isinstance(saved, torch.Tensor) or name in module._non_persistent_buffers_set:
                continue
            if buffer is None or (buffer.shape, buffer.dtype) != (saved.shape, saved.dtype):
                module._buffers[name] = torch.empty_like(saved, device=device if buffer is None else buffer.device)


def drifting_buffers(model: torch.nn.Module) -> State:
    """Buffers that are saved, and extra states: with BatchNorm each rank sees other samples, so they differ.

    Floating and complex numbers are in a type that numpy knows.
    """
    buffers = {name for name, _ in model.named_buffers()}
    state: State = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            state[f"model/{name}"] = _extra_text(name, value)
        elif name in buffers or name.endswith(_EXTRA):
            state[f"model/{name}"] = to_array(known_to_numpy(value))
    return state


@torch.no_grad()
def load_rank_local_state(model: torch.nn.Module, buffers: State) -> None:
    known = {f"model/{name}": buffer for name, buffer in model.named_buffers()}
    for name, array in buffers.items():
        if name in known:
            known[name].copy_(to_tensor(array))
        elif name.startswith("model/") and name.endswith(_EXTRA):
            path = name.removeprefix("model/").removesuffix(_EXTRA).removesuffix(".")
            value = from_text(array, to_tensor) if is_text(array) else to_tensor(array)
            model.get_submodule(path).set_extra_state(value)


def require_own_parameters(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise `UsageError` for a model or an optimizer whose state cannot be saved, or is not one and the same model's.

    From then on, what the optimizer keeps counts as changed by training.
    """
    require_savable_model(model)
    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            _extra_text(name, value)
    require_usable_optimizer(optimizer)
    known = {id(parameter) for parameter in model.parameters()}
    foreign = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
    if foreign:
        raise UsageError(
            f"The optimizer trains {len(foreign)} tensor(s) that are not part of the model, "
            f"the first of shape {tuple(foreign[0].shape)}.",
            "They would be neither summed over workers nor saved.",
            "make them parameters of the module that build_model() returns.",
        )
    remember_start(optimizer)


def _to_read(array: Any) -> Any:
    """The array itself as a tensor, or a copy if it is read-only, against which torch warns; or what a text tells."""
    if is_text(array):
        return from_text(array, to_tensor)
    return tensor_of(array) if array.flags.writeable else to_tensor(array)
