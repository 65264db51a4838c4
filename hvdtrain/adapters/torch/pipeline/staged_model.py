"""A model of which this process has one stage, or all stages on several devices, under the names of the whole model."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from hvdtrain.adapters.torch.pipeline.chain import Chain
from hvdtrain.adapters.torch.state import drifting_buffers
from hvdtrain.named_arrays import State


@dataclass(frozen=True)
class StagedModel:
    """What is left of a model here."""

    model: nn.Module  # with the weights and buffers of this process's stages only; names are unchanged
    modules: Sequence[nn.Module]  # the stages of this process, each on its device
    others: frozenset[str]  # names of weights, buffers and extra states that other processes alone have
    drifting: State  # zeros in the shapes of all buffers whose mean over ranks replaces them, float64 or complex128
    parameters: int  # trainable ones of the whole model


def keep_stages(chain: Chain, cuts: Sequence[int], stage: int | None, devices: Sequence[torch.device]) -> StagedModel:
    """Cut the model, keep what belongs here, and move it to its devices. The model itself is changed.

    Args:
        cuts: the first link of each stage but the first one.
        stage: the stage of this process; None: all.
    """
    model = chain.model
    ends = [*cuts, len(chain.names)]
    stages = list(zip([0, *cuts], ends, strict=True))
    kept = stages if stage is None else stages[stage : stage + 1]
    parts = [chain.part(first, end) for first, end in kept]
    names = _names_in(model)
    averaged = {name: array for name, array in drifting_buffers(model).items() if array.dtype.kind in "fc"}
    drifting = {name: np.zeros_like(array, np.result_type(array, np.float64)) for name, array in averaged.items()}
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if stage is not None:
        _drop_others(model, chain, *kept[0])
    for part, device in zip(parts, devices, strict=True):
        part.to(device)
        _share_buffers(model, part)
    if stage is not None:
        model.to(devices[0])
    return StagedModel(model, parts, names - _names_in(model), drifting, parameters)


def _names_in(model: nn.Module) -> frozenset[str]:
    """All names of weights, buffers and extra states; one that several layers share has several."""
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return frozenset(name for name, _ in named) | model.state_dict().keys()


def _drop_others(model: nn.Module, chain: Chain, first: int, end: int) -> None:
    """Weights and buffers of other stages, and layers that only have such; what no stage uses stays with the first one.

    A layer is taken out, too, because BatchNorm without its buffers could not load a state.
    """
    others = frozenset[int]().union(*chain.tensors[:first], *chain.tensors[end:])
    used = others.union(*chain.tensors[first:end])

    def is_other(tensor: torch.Tensor) -> bool:
        return id(tensor) in others or (first > 0 and id(tensor) not in used)

    layers = dict(model.named_modules(remove_duplicate=False))
    for path, module in layers.items():
        outer, _, last = path.rpartition(".")
        tensors = [*module.parameters(), *module.buffers()]
        if path and tensors and all(map(is_other, tensors)):
            layers[outer]._modules[last] = None
            continue
        for named in (module._parameters, module._buffers):
            named_tensors: dict[str, torch.Tensor | None] = named
            named_tensors |= {n: None for n, tensor in named_tensors.items() if tensor is not None and is_other(tensor)}


def _share_buffers(model: nn.Module, part: nn.Module) -> None:
    """A buffer that the part has for itself, because forward() uses it without a layer, is the model's too."""
    known = dict(model.named_buffers())
    for name, buffer in part.named_buffers():
        if name in known and known[name] is not buffer:
            outer, _, last = name.rpartition(".")
            model.get_submodule(outer)._buffers[last] = buffer
