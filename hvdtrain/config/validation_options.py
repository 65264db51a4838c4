"""The options that say which validation is the best and when training stops early."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from hvdtrain.algorithms.early_stopping import EarlyStopping, mode_of
from hvdtrain.config.option import AT_LEAST_ONE, NOT_NEGATIVE, Group, Options, option
from hvdtrain.errors import UsageError
from hvdtrain.set_names import in_set, set_of

_DEFAULT_METRIC = "loss"  # as in Keras and Hugging Face's Trainer; every task has it


@dataclass(frozen=True)
class ValidationOptions(Options):
    best_metric: str | None = option(None, Group.VALIDATION, metavar="NAME").help(
        """the task's metric whose best validation is kept as checkpoints/best, e.g. accuracy; of several sets that of
        the first one, or of another by its name, as NAME/accuracy (default: loss)."""
    )
    best_mode: Literal["auto", "min", "max"] = option("auto", Group.VALIDATION).help(
        "max, min, or auto: min for names that contain loss, error or perplexity, or are mae, rmse, wer and "
        "the like, otherwise max. A run with --best-metric says at its start which it is."
    )
    early_stopping_patience: int | None = option(None, Group.VALIDATION, must=AT_LEAST_ONE, example="3").help(
        "stop training after this many validations in a row without an improvement of best_metric (default: never)."
    )
    early_stopping_min_delta: float | None = option(None, Group.VALIDATION, must=NOT_NEGATIVE, example="0.001").help(
        "gains of this much or less don't reset patience (default: 0)."
    )


def early_stopping_of(options: ValidationOptions, sets: Collection[str]) -> EarlyStopping:
    """What compares validations of the sets with these names as `options` say."""
    name, measure = set_of(options.best_metric or _DEFAULT_METRIC, sets)
    delta = options.early_stopping_min_delta or 0.0
    mode = mode_of(measure, options.best_mode)
    return EarlyStopping(in_set(name, measure), mode, options.early_stopping_patience, delta)


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
