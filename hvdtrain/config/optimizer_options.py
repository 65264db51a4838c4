"""Which optimizer the options ask for, with each optimizer's usual value where an option was left out."""

from __future__ import annotations

from hvdtrain.algorithms import optimizer_settings as usual
from hvdtrain.algorithms.optimizer_settings import Settings
from hvdtrain.config.training_options import TrainingOptions


def settings_of(options: TrainingOptions) -> Settings:
    """What the flags say. `options.optimizer` must be chosen; a `ValueError` says that it is not."""
    name = options.optimizer
    if name is None:
        raise ValueError("no optimizer is chosen, so that the task builds its own")
    return Settings(
        name,
        _given(options.momentum, usual.MOMENTUM),
        options.nesterov,
        _given(options.beta1, usual.BETAS[0]),
        _given(options.beta2, usual.BETAS[1]),
        _given(options.eps, usual.EPS.get(name, 1e-8)),
        _given(options.weight_decay, usual.WEIGHT_DECAY.get(name, 0.0)),
        _given(options.trust_coefficient, usual.TRUST_COEFFICIENT),
    )


def describe(options: TrainingOptions) -> str:
    """What is applied, for people: "adamw (beta1 0.9, beta2 0.999, eps 1e-08, weight decay 0.01)"."""
    s = settings_of(options)
    parts = {
        "momentum": s.momentum if s.name in ("sgd", "lars") else None,
        "beta1": s.beta1 if s.name in usual.EPS else None,
        "beta2": s.beta2 if s.name in usual.EPS else None,
        "eps": s.eps if s.name in usual.EPS else None,
        "weight decay": s.weight_decay,
        "trust coefficient": s.trust_coefficient if s.name == "lars" else None,
    }
    words = [f"{name} {value:g}" for name, value in parts.items() if value is not None]
    words += ["Nesterov"] if s.nesterov else []
    if options.decay_norm_and_bias:
        words.append("norm and bias too")
    return f"{s.name} ({', '.join(words)})"


def _given(value: float | None, usual: float) -> float:
    return usual if value is None else value
