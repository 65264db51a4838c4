"""The update rules of sgd, adam, adamw, lars and lamb, once for all frameworks.

A rule is arithmetic on arrays of any framework (numpy, torch, TensorFlow) that have + - * /; what else it needs is in
`Operations`. It says in which direction the weights go; the caller takes lr · direction from them:

| rule | direction, where g is the gradient, w the weights, d the decay and t the update's number from 1 |
|---|---|
| sgd | b, or with Nesterov g' + momentum · b; b = momentum · b + g', g' = g + d · w (Sutskever et al. 2013, as torch) |
| adam | m̂ / (√v̂ + eps) of g' = g + d · w; m and v are averages of g' and g'², the hat divides by 1 - betaᵗ |
| adamw | the same of g, plus d · w (Loshchilov and Hutter 2017, arXiv:1711.05101) |
| lars | b of trust · ‖w‖ / (‖g‖ + d · ‖w‖) · g' |
| lamb | ‖w‖ / ‖u‖ · u, where u is adamw's direction |

lars is You et al. 2017 (arXiv:1708.03888) in the variant of Nvidia apex's `LARC(clip=False)` around torch's SGD: the
gradient is scaled before momentum, so that the buffer holds no learning rate (the paper's does), and where weights or
gradient are all zero, the gradient is taken as it is, neither scaled nor decayed. lamb is You et al. 2019
(arXiv:1904.00962), algorithm 2, with φ the identity and corrected moments; where a norm is zero the ratio is 1. Its
clipping of gradients by their norm over all weights is `--max-grad-norm`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hvdtrain.algorithms.optimizer_settings import OptimizerName, Settings, require_each_once

Slots = dict[str, Any]
"""What a rule keeps of one parameter between updates: arrays of the parameter's shape and dtype, zero at first."""

_LARS_EPS = 1e-8  # apex's


@dataclass(frozen=True)
class Operations:
    """What arrays do not do by operators.

    Attributes:
        sqrt: the root of each element.
        norm: the Euclidean norm of a whole array, as a scalar array.
        where: `where(condition, array, other)` for scalar arrays; `other` may be a number.
    """

    sqrt: Callable[[Any], Any]
    norm: Callable[[Any], Any]
    where: Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class Corrections:
    """By what the moments are divided at update t, since they began at zero: 1 - beta1ᵗ and √(1 - beta2ᵗ)."""

    first: Any
    second: Any


def corrections(settings: Settings, update: Any) -> Corrections:
    """For the update of number `update`, from 1: a number or a float64 scalar; 1 - 0.999 in float32 is 6e-5 off."""
    return Corrections(1 - settings.beta1**update, (1 - settings.beta2**update) ** 0.5)


def slot_names(settings: Settings) -> tuple[str, ...]:
    """The names, torch's, of what the rule keeps."""
    names = _RULES[settings.name][1]
    return () if names == _BUFFER and not settings.momentum else names


def direction(
    operations: Operations, settings: Settings, weight: Any, gradient: Any, slots: Slots, corrected: Corrections
) -> tuple[Any, Slots]:
    """What is to be taken from the weights, times the learning rate, and the slots after this update.

    Args:
        operations: of the arrays' framework.
        settings: of this parameter.
        weight, gradient: arrays of one shape and dtype.
        slots: as the last update left them, zeros at first.
        corrected: of this update; scalars that the arrays can be divided by. Not used by sgd and lars.
    """
    rule = _RULES[settings.name][0]
    return rule(operations, settings, weight, gradient, slots, corrected)


def _sgd(_: Operations, s: Settings, weight: Any, gradient: Any, slots: Slots, __: Corrections) -> tuple[Any, Slots]:
    return _with_momentum(s, _decayed(s, weight, gradient), slots)


def _lars(
    operations: Operations, s: Settings, weight: Any, gradient: Any, slots: Slots, _: Corrections
) -> tuple[Any, Slots]:
    if not s.adapts:
        return _with_momentum(s, gradient, slots)
    weights, gradients = operations.norm(weight), operations.norm(gradient)
    local = s.trust_coefficient * weights / (gradients + s.weight_decay * weights + _LARS_EPS)
    share = operations.where(weights * gradients > 0, local, 1.0)
    decay = operations.where(weights * gradients > 0, s.weight_decay * local, 0.0)
    return _with_momentum(s, gradient * share + weight * decay, slots)


def _adam(
    operations: Operations, s: Settings, weight: Any, gradient: Any, slots: Slots, corrected: Corrections
) -> tuple[Any, Slots]:
    return _normalized(operations, s, _decayed(s, weight, gradient), slots, corrected)


def _adamw(
    operations: Operations, s: Settings, weight: Any, gradient: Any, slots: Slots, corrected: Corrections
) -> tuple[Any, Slots]:
    step, slots = _normalized(operations, s, gradient, slots, corrected)
    return _decayed(s, weight, step), slots


def _lamb(
    operations: Operations, s: Settings, weight: Any, gradient: Any, slots: Slots, corrected: Corrections
) -> tuple[Any, Slots]:
    step, slots = _adamw(operations, s, weight, gradient, slots, corrected)
    if not s.adapts:
        return step, slots
    weights, steps = operations.norm(weight), operations.norm(step)
    steps = operations.where(steps > 0, steps, 1.0)  # a step of zeros is zero by any ratio
    return step * operations.where(weights > 0, weights / steps, 1.0), slots


_BUFFER = ("momentum_buffer",)
_MOMENTS = ("exp_avg", "exp_avg_sq")
_RULES: dict[OptimizerName, tuple[Callable[..., tuple[Any, Slots]], tuple[str, ...]]] = {
    "sgd": (_sgd, _BUFFER),
    "adam": (_adam, _MOMENTS),
    "adamw": (_adamw, _MOMENTS),
    "lars": (_lars, _BUFFER),
    "lamb": (_lamb, _MOMENTS),
}
require_each_once(_RULES)


def _decayed(s: Settings, weight: Any, array: Any) -> Any:
    return array + s.weight_decay * weight if s.weight_decay else array


def _with_momentum(s: Settings, gradient: Any, slots: Slots) -> tuple[Any, Slots]:
    if not s.momentum:
        return gradient, {}
    buffer = s.momentum * slots["momentum_buffer"] + gradient
    return gradient + s.momentum * buffer if s.nesterov else buffer, {"momentum_buffer": buffer}


def _normalized(
    operations: Operations, s: Settings, gradient: Any, slots: Slots, corrected: Corrections
) -> tuple[Any, Slots]:
    first = slots["exp_avg"] + (1 - s.beta1) * (gradient - slots["exp_avg"])
    second = s.beta2 * slots["exp_avg_sq"] + (1 - s.beta2) * (gradient * gradient)
    step = first / corrected.first / (operations.sqrt(second) / corrected.second + s.eps)
    return step, {"exp_avg": first, "exp_avg_sq": second}
