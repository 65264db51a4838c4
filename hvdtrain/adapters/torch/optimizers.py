"""The optimizers of `--optimizer` in torch: its own classes where their arithmetic is the rule's, else the rule."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partialmethod
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from hvdtrain.algorithms import update_rules
from hvdtrain.config.training_options import TrainingOptions, optimizer_settings
from hvdtrain.task.task import Task

_NORMALIZATIONS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)  # _NormBase: Batch-, SyncBatch- and InstanceNorm
_Many = dict[str, Any]


def optimizer_of(task: Task, model: nn.Module, lr: float, options: TrainingOptions) -> Any:
    """The optimizer that `options` choose, or else the task's own: an object that may not be an optimizer."""
    optimizer = task.build_optimizer(model, lr) if options.optimizer is None else build_optimizer(model, lr, options)
    complete_fused_momentum(optimizer)
    return optimizer


def build_optimizer(model: nn.Module, lr: float, options: TrainingOptions) -> torch.optim.Optimizer:
    """The optimizer that `options` choose, for the model's parameters.

    Two groups of parameters at most: the decayed, and the exempt (normalization and biases).

    Args: `options`: `optimizer` must be chosen.
    """
    settings = optimizer_settings(options)
    groups = _groups(model, settings, options.decay_norm_and_bias)
    rule = update_rules.optimizer_named(settings.name)
    if rule.torch_class is None:
        return RuleOptimizer(groups, lr, settings)
    # One kernel for all parameters of a group. It takes no sparse gradients; torch's other ways do, if a rule can.
    fused = options.sparse_gradients == "dense" and all(_can_fuse(p) for group in groups for p in group["params"])
    how = {"fused": True} if fused else {}
    numbers: _Many = {"betas": (settings.beta1, settings.beta2), "eps": settings.eps}
    if "momentum" in rule.usual:
        numbers = {"momentum": settings.momentum, "nesterov": settings.nesterov}
    optimizer: torch.optim.Optimizer = getattr(torch.optim, rule.torch_class)(groups, lr=lr, **numbers, **how)
    if fused:
        optimizer.register_step_pre_hook(_lay_out_gradients)
    return optimizer


class RuleOptimizer(torch.optim.Optimizer):
    """Any optimizer by its rule in `hvdtrain.algorithms.update_rules`, many parameters in one kernel.

    State of a parameter: "step", the updates it has had, and the rule's slots.

    Args:
        groups: each with "params", "weight_decay" and "adapts".
        settings: the rule, and what is the same in all groups.
    """

    def __init__(self, groups: Iterable[_Many], lr: float, settings: update_rules.Settings) -> None:
        self._settings = settings
        super().__init__(groups, {"lr": lr, "weight_decay": settings.weight_decay, "adapts": settings.adapts})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            settings = self._settings if group["adapts"] else self._settings.for_exempt()
            for alike in self._alike(group["params"], update_rules.slot_names(settings)):
                self._update(alike, settings, group["lr"])
        return loss

    def _alike(self, parameters: Iterable[torch.Tensor], slots: Iterable[str]) -> Iterable[list[torch.Tensor]]:
        """Parameters with gradients, those together that one kernel can update."""
        buckets: dict[Any, list[torch.Tensor]] = defaultdict(list)
        for parameter in parameters:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state["step"] = 0
                state.update({slot: torch.zeros_like(parameter) for slot in slots})
            buckets[parameter.device, parameter.dtype, state["step"]].append(parameter)
        return buckets.values()

    def _update(self, parameters: list[torch.Tensor], settings: update_rules.Settings, lr: float) -> None:
        states = [self.state[parameter] for parameter in parameters]
        gradients = [_dense(parameter) for parameter in parameters]
        slots = {name: TensorList([state[name] for state in states]) for name in update_rules.slot_names(settings)}
        step: int = states[0]["step"] + 1
        corrected = update_rules.corrections(settings, step)
        down, slots = update_rules.direction(
            _OPERATIONS, settings, TensorList(parameters), TensorList(gradients), slots, corrected
        )
        torch._foreach_add_(parameters, down.tensors, alpha=-lr)
        for place, state in enumerate(states):
            state["step"] = step
            state.update({name: values.tensors[place] for name, values in slots.items()})


def _dense(parameter: torch.Tensor) -> torch.Tensor:
    gradient = parameter.grad
    if gradient is None:
        raise ValueError("a parameter without a gradient")
    return gradient.to_dense() if gradient.is_sparse else gradient


def _groups(model: nn.Module, settings: update_rules.Settings, decay_all: bool) -> list[_Many]:
    """Each parameter once, tied or not, in the model's order; no empty group.

    Frozen ones too, which may be trained later: they have no gradients, and are skipped.
    """
    exempt = set() if decay_all else {id(parameter) for parameter in _exempt(model)}
    trained = [p for p in model.parameters() if p.requires_grad or p.is_floating_point() or p.is_complex()]
    decayed = [parameter for parameter in trained if id(parameter) not in exempt]
    spared = [parameter for parameter in trained if id(parameter) in exempt]
    kinds = ((decayed, settings), (spared, settings.for_exempt()))
    return [{"params": those, "weight_decay": s.weight_decay, "adapts": s.adapts} for those, s in kinds if those]


def _exempt(model: nn.Module) -> Iterable[nn.Parameter]:
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if update_rules.is_exempt(name, parameter.ndim, isinstance(module, _NORMALIZATIONS)):
                yield parameter


def _can_fuse(parameter: torch.Tensor) -> bool:
    known = parameter.is_floating_point() and parameter.device.type in ("cpu", "cuda")
    return known and torch.empty_like(parameter).stride() == parameter.stride()  # without gaps


def _lay_out_gradients(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """torch's fused kernels pair up elements as they lie in memory: on a CPU other strides give wrong numbers."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None and gradient.stride() != parameter.stride():
                parameter.grad = torch.empty_like(parameter).copy_(gradient)


class TensorList:
    """Many tensors of one device and dtype used as one, so that an operation is one GPU kernel for all of them.

    The other side may be a list of as many, a number, or a vector with one scalar for each tensor of the list.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors

    def _by(self, other: Any, operation: Callable[[Any, Any], Iterable[torch.Tensor]]) -> "TensorList":
        if isinstance(other, torch.Tensor):
            other = list(other.unbind())
        return TensorList(list(operation(self.tensors, other.tensors if isinstance(other, TensorList) else other)))

    __add__ = __radd__ = partialmethod(_by, operation=torch._foreach_add)
    __mul__ = __rmul__ = partialmethod(_by, operation=torch._foreach_mul)
    __sub__ = partialmethod(_by, operation=torch._foreach_sub)
    __truediv__ = partialmethod(_by, operation=torch._foreach_div)


_OPERATIONS = update_rules.Operations(
    sqrt=lambda many: TensorList(list(torch._foreach_sqrt(many.tensors))),
    sign=lambda many: TensorList(list(torch._foreach_sign(many.tensors))),
    norm=lambda many: torch.stack(list(torch._foreach_norm(many.tensors))),
    where=torch.where,
)
"""Of `TensorList`; a scalar of the rules is a vector, with one element a tensor."""


def complete_fused_momentum(optimizer: Any) -> None:
    """Have a fused SGD begin the momentum of a parameter with zeros where others have theirs already.

    torch's kernel takes either no momentum or that of each parameter, and raises TypeError where some have their first
    gradient later. Without dampening zeros are the same as none: the first update makes them 0 · momentum + gradient.
    """
    groups = getattr(optimizer, "param_groups", ())
    if type(optimizer) is torch.optim.SGD and any(map(_needs_all, groups)):
        optimizer.register_step_pre_hook(_begin_missing)


def _needs_all(group: dict[str, Any]) -> bool:
    return bool(group["fused"] and group["momentum"] and not group["dampening"])


def _begin_missing(optimizer: torch.optim.Optimizer, *_: object) -> None:
    state, count = optimizer.state, sum(len(group["params"]) for group in optimizer.param_groups)
    if len(state) in (0, count):  # before the first step, and in nearly all others
        return
    for group in filter(_needs_all, optimizer.param_groups):
        for parameter in group["params"]:
            if parameter.grad is not None and state[parameter].get("momentum_buffer") is None:
                state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
