"""The optimizers of `--optimizer`: their settings, and their update rules, once for all frameworks.

A rule is arithmetic on arrays of any framework (numpy, torch, TensorFlow) that have + - * /; what else it needs is in
`Operations`. It gives the direction, and the caller subtracts lr · direction from the weights:

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

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from hvdtrain import extensions
from hvdtrain.errors import UsageError, did_you_mean

Slots = dict[str, Any]
"""What a rule keeps of one parameter between updates: arrays of the parameter's shape and dtype, zero at first."""

_LARS_EPS = 1e-8  # apex's


@dataclass(frozen=True)
class Settings:
    """One optimizer, for one kind of parameter. Settings that the rule of `name` does not know change nothing."""

    name: str  # which rule
    momentum: float = 0.9  # share of the momentum buffer that an update keeps, for sgd and lars
    nesterov: bool = False  # look ahead by the momentum, for sgd
    beta1: float = 0.9  # decay of the first moment, for adam, adamw and lamb
    beta2: float = 0.999  # decay of the second moment
    eps: float = 1e-8  # added to the root of the second moment, after its correction, as in torch
    weight_decay: float = 0.0  # added to the gradient (sgd, adam, lars) or to the direction (adamw, lamb)
    trust_coefficient: float = 0.001  # of lars
    adapts: bool = True  # whether lars and lamb scale the step by the norm of the weights

    def for_exempt(self) -> "Settings":
        """The same for normalization layers and biases: no decay, and no scaling by norms."""
        return replace(self, weight_decay=0.0, adapts=False)


@dataclass(frozen=True)
class Operations:
    """What arrays cannot do by operators."""

    sqrt: Callable[[Any], Any]  # the root of each element
    sign: Callable[[Any], Any]  # -1, 0 or 1 for each element
    norm: Callable[[Any], Any]  # the Euclidean norm of a whole array, as a scalar array
    where: Callable[[Any, Any, Any], Any]  # `where(condition, array, other)` for scalar arrays; `other` may be a number


@dataclass(frozen=True)
class Corrections:
    """The divisors of the moments at update t, since moments begin at zero: 1 - beta1ᵗ and √(1 - beta2ᵗ)."""

    first: Any
    second: Any


def corrections(settings: Settings, update: Any) -> Corrections:
    """For the update of number `update`, from 1: a number or a float64 scalar; 1 - 0.999 in float32 is 6e-5 off."""
    return Corrections(1 - settings.beta1**update, (1 - settings.beta2**update) ** 0.5)


def slot_names(settings: Settings) -> tuple[str, ...]:
    """The names, torch's, of what the rule keeps."""
    slots = optimizer_named(settings.name).slots
    return () if slots == _BUFFER and not settings.momentum else slots


def direction(
    operations: Operations, settings: Settings, weight: Any, gradient: Any, slots: Slots, corrected: Corrections
) -> tuple[Any, Slots]:
    """What the caller subtracts from the weights, times the learning rate, and the slots after this update.

    Args:
        weight, gradient: arrays of one shape and dtype.
        slots: as the last update left them, zeros at first.
        corrected: of this update; scalars that the arrays can be divided by. Not used by sgd and lars.
    """
    return optimizer_named(settings.name).rule(operations, settings, weight, gradient, slots, corrected)


def is_exempt(name: str, ndim: int, in_normalization: bool) -> bool:
    """Whether a parameter is neither decayed nor scaled by lars and lamb, unless `--decay-norm-and-bias` is given.

    A parameter with one dimension or none is a bias or a scale (Goyal et al. 2017, arXiv:1706.02677, section 5.1,
    exempt the scales; You et al. 2017 and 2019 both, in their code). A bias may have more dimensions, as in Keras'
    attention; its name shows what it is. Embeddings are decayed.

    Args: `name`: the parameter's own, without its layer's: "weight", "bias".
    """
    return in_normalization or ndim <= 1 or name == "bias"


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


@dataclass(frozen=True)
class Optimizer:
    """One optimizer of `--optimizer`: an entry of `OPTIMIZERS`, or what another package adds to hvdtrain.optimizers.

    Attributes:
        rule: (operations, settings, weight, gradient, slots, corrections) → (direction, slots).
        slots: the names of what the rule keeps for each parameter.
        usual: its options in the order in which they are printed, and their values if not given.
        torch_class: the class in torch.optim with the same arithmetic; None: torch, too, runs the rule.
        uses_norms: the rule needs whole weights, not some of their numbers.

    Raises TypeError: `usual` names what no `Settings` has, or lacks what the slots are computed with.
    """

    rule: Callable[..., tuple[Any, Slots]]
    slots: tuple[str, ...]
    usual: Mapping[str, float]
    torch_class: str | None = None
    uses_norms: bool = False

    def __post_init__(self) -> None:
        valid = {field.name for field in fields(Settings)} - {"name", "adapts"}
        needed = {"weight_decay", *_NEEDED.get(self.slots, ())}
        if wrong := sorted((self.usual.keys() - valid) | (needed - self.usual.keys())):
            raise TypeError(f"OPTIMIZERS: options that are unknown or missing: {wrong}; valid: {sorted(valid)}")


_BUFFER: Final = ("momentum_buffer",)
_MOMENTS: Final = ("exp_avg", "exp_avg_sq")
_NEEDED: Final = {_BUFFER: ("momentum",), _MOMENTS: ("beta1", "beta2", "eps")}
_MOMENTUM: Final = {"momentum": 0.9}
_BETAS: Final = {"beta1": 0.9, "beta2": 0.999}  # Kingma and Ba 2014, arXiv:1412.6980

OPTIMIZERS: Final[Mapping[str, Optimizer]] = {
    "sgd": Optimizer(_sgd, _BUFFER, {**_MOMENTUM, "nesterov": False, "weight_decay": 0.0}, "SGD"),
    "adam": Optimizer(_adam, _MOMENTS, {**_BETAS, "eps": 1e-8, "weight_decay": 0.0}, "Adam"),
    "adamw": Optimizer(_adamw, _MOMENTS, {**_BETAS, "eps": 1e-8, "weight_decay": 0.01}, "AdamW"),  # torch's values
    "lars": Optimizer(_lars, _BUFFER, {**_MOMENTUM, "weight_decay": 0.0, "trust_coefficient": 0.001}, uses_norms=True),
    "lamb": Optimizer(
        _lamb,
        _MOMENTS,
        {**_BETAS, "eps": 1e-6, "weight_decay": 0.01},  # You et al. 2019, for BERT
        uses_norms=True,
    ),
}
"""Every optimizer of hvdtrain's own: the options, the slots and both frameworks follow from its entry."""


def optimizer_named(name: str) -> Optimizer:
    """The optimizer of `--optimizer NAME`: ours, or one of an installed package. Raises UsageError: there is none, or
    what the package has is something else."""
    return OPTIMIZERS[name] if name in OPTIMIZERS else _added(name)


@functools.cache
def _added(name: str) -> Optimizer:
    added = extensions.load(extensions.OPTIMIZERS, name)
    if added is None:
        names = [*OPTIMIZERS, *extensions.names_in(extensions.OPTIMIZERS)]
        raise UsageError(
            f"--optimizer is given as {name!r}.", f"It must be {', '.join(names)}.", did_you_mean(name, names)
        )
    if not isinstance(added, Optimizer):
        raise UsageError(
            f"{name!r} of {extensions.OPTIMIZERS} is an instance of {type(added).__name__}.",
            "An optimizer of hvdtrain is a rule that both frameworks run.",
            "make it a hvdtrain.algorithms.update_rules.Optimizer, as docs/extending.md shows.",
        )
    return added
