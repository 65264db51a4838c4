"""Weights as a torch model's own `load_state_dict` understands them. Imports torch.

Modules rename and convert what older versions of them saved: by hooks, and by the version that a file states. Names
that are tied are one tensor, and a file may hold any of them.
"""

import copy
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from hvdtrain.adapters.torch.tensor_arrays import known_to_numpy, view_of
from hvdtrain.errors import UsageError
from hvdtrain.task.task import Task
from hvdtrain.weights.named_weights import Arrays, NamedWeights, Versions, fitted


def naming_of(task: Task, model: nn.Module | None) -> "ModelNaming":
    """The naming of the task's model.

    Args:
        task: builds a model where there is no whole one; random numbers are drawn as if it did not.
        model: the one that is trained, whose values may be lost.
    """
    if model is not None:
        return ModelNaming(_copy_of(model))
    with torch.random.fork_rng(devices=[]):
        return ModelNaming(copy.copy(task).build_model())  # of a copy: what the task keeps stays the trained model's


def _copy_of(model: nn.Module) -> nn.Module:
    """A copy, whose layers may note what they see in a file; `model` itself where it cannot be copied.

    Hooks of calls are left out: through them a copy would reach all that exchanges gradients.
    """
    calls = (
        hooks
        for module in model.modules()
        for name, hooks in vars(module).items()
        if name.endswith("_hooks") and "state_dict" not in name
    )
    try:
        return copy.deepcopy(model, {id(hooks): OrderedDict() for hooks in calls})
    except Exception:  # by whatever the layers keep: a lock, a file, a tensor that torch has computed
        return model


def give_weights(model: nn.Module, weights: NamedWeights) -> None:
    wanted = {name: view_of(known_to_numpy(tensor)) for name, tensor in _tensors_of(model).items()}
    arrays = fitted(weights, wanted, "torch", naming=ModelNaming(model))
    model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}, strict=False)


class ModelNaming:
    """Loads arrays into a model to give them its names. Implements `named_weights.Naming`.

    Args: `model`: its own weights are lost.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __call__(self, arrays: Arrays, versions: Versions | None, origin: str, fresh: Collection[str]) -> Arrays:
        tensors = _tensors_of(self._model)
        groups = _tied(tensors)
        _require_same_values(groups, arrays, origin)
        misshapen = {n for n, array in arrays.items() if n in tensors and array.shape != tuple(tensors[n].shape)}
        missing, unexpected, refused = self._loaded(arrays, versions, misshapen, origin)
        without = {*missing, *refused, *fresh}
        named = {name: view_of(known_to_numpy(tensor)) for name, tensor in tensors.items() if name not in without}
        named |= {name: arrays[name] for name in refused}
        for group in groups:
            present = next((name for name in group if name in named), None)
            if present is not None:
                named |= dict.fromkeys(group, named[present])
        return named | {name: arrays.get(name, np.empty(0)) for name in unexpected}

    def _loaded(
        self, arrays: Arrays, versions: Versions | None, misshapen: set[str], origin: str
    ) -> tuple[Iterable[str], Iterable[str], set[str]]:
        """Names of the model that are missing, names that it does not know, and those that it refused for a shape."""
        try:
            return *self._load(arrays, versions), set()
        except (RuntimeError, KeyError, TypeError, AttributeError) as error:  # also of hooks that expect other names
            if not misshapen:
                raise UsageError(
                    f"The weights in {origin} do not fit the model.",
                    f"Its load_state_dict says: {type(error).__name__}: {' '.join(str(error).split())}.",
                    "build the model with the --model and --task-args that they were trained with.",
                ) from error
        rest = {name: array for name, array in arrays.items() if name not in misshapen}
        missing, unexpected, _ = self._loaded(rest, versions, set(), origin)
        return missing, unexpected, misshapen

    def _load(self, arrays: Arrays, versions: Versions | None) -> tuple[Iterable[str], Iterable[str]]:
        state: Any = OrderedDict((name, torch.from_numpy(np.require(a, None, "W"))) for name, a in arrays.items())
        if versions is None:
            versions = getattr(self._model.state_dict(), "_metadata", {})
        state._metadata = {module: dict(facts) for module, facts in versions.items()}
        keys = self._model.load_state_dict(state, strict=False)
        return keys.missing_keys, keys.unexpected_keys


def _tensors_of(model: nn.Module) -> Mapping[str, torch.Tensor]:
    return {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}


def _tied(tensors: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Groups of names that have the same memory."""
    groups: dict[object, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.numel():
            place = tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
            groups.setdefault(place, []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _require_same_values(groups: list[list[str]], arrays: Arrays, origin: str) -> None:
    for group in groups:
        first, *others = [name for name in group if name in arrays] or [""]
        for other in others:
            if not np.array_equal(arrays[first], arrays[other]):
                raise UsageError(
                    f"{origin} holds different values for {first} and {other}.",
                    "The model has one array for both.",
                    f"choose {first} by --init-weights-exclude {other}, or the other way round.",
                )
