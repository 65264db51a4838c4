"""What the options say about the optimizer: its settings, and in words."""

from typing import Any

from hvdtrain.algorithms.update_rules import OPTIMIZERS, Settings
from hvdtrain.config.training_options import TrainingOptions


def settings_of(options: TrainingOptions) -> Settings:
    """What the options say. `options.optimizer` must be chosen; a `ValueError` says that it is not."""
    name = options.optimizer
    if name is None:
        raise ValueError("no optimizer is chosen, so that the task builds its own")
    chosen: dict[str, Any] = dict(OPTIMIZERS[name].usual)
    for option in chosen:
        given = getattr(options, option)
        if given is not None:
            chosen[option] = given
    return Settings(name, **chosen)


def describe(options: TrainingOptions) -> str:
    """What is applied, for people: "adamw (beta1 0.9, beta2 0.999, eps 1e-08, weight decay 0.01)"."""
    settings = settings_of(options)
    told = [option for option in OPTIMIZERS[settings.name].usual if option != "nesterov"]
    words = [f"{option.replace('_', ' ')} {getattr(settings, option):g}" for option in told]
    words += ["Nesterov"] if settings.nesterov else []
    words += ["norm and bias too"] if options.decay_norm_and_bias else []
    return f"{settings.name} ({', '.join(words)})"
