"""The options that say which validation is the best and when training stops early."""

from dataclasses import dataclass
from typing import Literal

from hvdtrain.algorithms.early_stopping import EarlyStopping, mode_of
from hvdtrain.config.option_checks import AT_LEAST_ONE, NOT_NEGATIVE, require_range
from hvdtrain.errors import UsageError

_DEFAULT_METRIC = "loss"  # as in Keras and Hugging Face's Trainer; every task has it


@dataclass(frozen=True)
class ValidationOptions:
    """What validation decides.

    Args:
        best_metric: the task's metric whose best validation is kept as checkpoints/best, e.g. accuracy (default: loss).
        best_mode: max, min, or auto: min for names that contain loss, error or perplexity, otherwise max.
        early_stopping_patience: stop training after this many validations in a row without an improvement of
            best_metric (default: never).
        early_stopping_min_delta: gains of this much or less don't reset patience (default: 0).
    """

    best_metric: str | None = None
    best_mode: Literal["auto", "min", "max"] = "auto"
    early_stopping_patience: int | None = None
    early_stopping_min_delta: float | None = None

    def __post_init__(self) -> None:
        patience, delta = self.early_stopping_patience, self.early_stopping_min_delta
        require_range(self, AT_LEAST_ONE, {"early_stopping_patience": "3"})
        require_range(self, NOT_NEGATIVE, {"early_stopping_min_delta": "0.001"})
        if delta and patience is None:
            raise UsageError(
                f"--early-stopping-min-delta {delta} is given without --early-stopping-patience.",
                "It would change nothing.",
                "say how many validations to wait, e.g. --early-stopping-patience 3.",
            )
        if self.best_mode != "auto" and self.best_metric is None:
            raise UsageError(
                f"--best-mode {self.best_mode} is given without --best-metric.",
                "Of the loss, which is compared then, the smallest is the best.",
                "name the metric, e.g. --best-metric accuracy.",
            )


def early_stopping_of(options: ValidationOptions) -> EarlyStopping:
    """What compares validations as `options` say."""
    metric = options.best_metric or _DEFAULT_METRIC
    delta = options.early_stopping_min_delta or 0.0
    return EarlyStopping(metric, mode_of(metric, options.best_mode), options.early_stopping_patience, delta)


def require_validation(options: ValidationOptions, has_validation: bool) -> None:
    """Raise `UsageError` where options ask for what only validation can tell, and there is none."""
    asked = {"--best-metric": options.best_metric, "--early-stopping-patience": options.early_stopping_patience}
    option = next((option for option, value in asked.items() if value is not None), None)
    if option is not None and not has_validation:
        raise UsageError(
            f"{option} {asked[option]} is given, and the task has no validation data.",
            "The training loss of single steps says nothing of which weights are the best.",
            f"give the task validation data, or leave out {option}.",
        )
