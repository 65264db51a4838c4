"""The best validation so far, and when to stop training because none is better.

Pure arithmetic on reduced values, so that all ranks decide alike. A `ValidationHistory` is saved as a part of every
checkpoint's position.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hvdtrain.errors import UsageError, did_you_mean

_LOWER_IS_BETTER = ("loss", "error", "perplexity")
_SHORT_NAMES = frozenset(
    (
        *("mae", "mse", "rmse", "nrmse", "rmsle", "mape", "smape", "err", "epe"),
        *("nll", "ce", "bce", "ppl", "bpb", "bpc", "kl", "kld"),
        *("wer", "cer", "eer", "fid", "lpips", "brier", "ece"),
    )
)
"""Of measures of which less is better, as whole words of a name."""
_HIGHER_IS_BETTER = frozenset(("accuracy", "auc", "recall", "iou", "dice", "bleu"))
"""Of which more is, whatever else the name says."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@dataclass(frozen=True, slots=True)
class Best:
    """The best validation: `value` of `metric` after `step` updates, in `epoch` (from 0)."""

    metric: str
    value: float
    step: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ValidationHistory:
    """How validations have gone so far."""

    best: Best | None = None  # the best one; None before the first, or while all values were NaN or infinite
    # the value that the next one must improve on to be worth waiting for; None: there is none yet
    mark: float | None = None
    waited: int = 0  # validations since `mark` was set
    step: int = 0  # updates before the last validation that was counted; 0: none was
    compared: str = ""  # by what, e.g. "min loss".

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "ValidationHistory":
        best = fields["best"]
        return cls(**{**fields, "best": Best(**best) if best is not None else None})


@dataclass(frozen=True)
class EarlyStopping:
    """Compares validations."""

    metric: str = "loss"  # one of the task's measures
    mode: Literal["min", "max"] = "min"  # whether the smallest or the largest value is the best
    patience: int | None = None  # validations without improvement after which waiting ends; None: never
    # an improvement by no more than this is none for `patience`. The best one is the best by any margin.
    min_delta: float = 0.0

    @property
    def compares(self) -> str:
        return f"{self.mode} {self.metric}"

    def resume_from(self, history: ValidationHistory) -> ValidationHistory:
        """`history`, if it compared the same; otherwise a new one, without the last validation."""
        return history if history.compared == self.compares else ValidationHistory()

    def after(
        self, history: ValidationHistory, epoch: int, step: int, values: Mapping[str, float]
    ) -> ValidationHistory:
        """The history after one more validation. Repeating one, after the same step, changes nothing.

        Raises `UsageError`: `values` are the same on all ranks, and have no such metric.
        """
        require_metric(self.metric, values)
        if step <= history.step:
            return history
        value, best = values[self.metric], history.best
        if self._improves(value, best.value if best is not None else None):
            best = Best(self.metric, value, step, epoch)
        if self._improves(value, history.mark, self.min_delta):
            return ValidationHistory(best, value, 0, step, self.compares)
        return ValidationHistory(best, history.mark, history.waited + 1, step, self.compares)

    def should_stop(self, history: ValidationHistory) -> bool:
        return self.patience is not None and history.waited >= self.patience

    def _improves(self, value: float, on: float | None, by: float = 0.0) -> bool:
        """As in Keras and Lightning: by more than `by`. NaN and infinities never do."""
        if not math.isfinite(value):
            return False
        if on is None:
            return True
        return value < on - by if self.mode == "min" else value > on + by


def mode_of(metric: str, mode: Literal["auto", "min", "max"]) -> Literal["min", "max"]:
    """`mode`, where auto means: min for names that speak of a loss, an error or a perplexity, else max."""
    if mode != "auto":
        return mode
    words = {*re.split(r"[\W\d_]+", metric.lower()), *(word.lower() for word in _WORD.findall(metric))}
    is_short = not _SHORT_NAMES.isdisjoint(words) and _HIGHER_IS_BETTER.isdisjoint(words)
    return "min" if is_short or any(word in metric.lower() for word in _LOWER_IS_BETTER) else "max"


def require_metric(metric: str, measured: Collection[str]) -> None:
    """Raise `UsageError`, joint, unless the task measures `metric`."""
    if metric not in measured:
        raise UsageError(
            f"The task does not measure {metric!r}.", "It was given as --best-metric.", did_you_mean(metric, measured)
        ).on_all_ranks()
