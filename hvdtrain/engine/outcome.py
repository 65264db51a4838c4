"""What a run leaves behind, besides files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hvdtrain.algorithms.early_stopping import Best
from hvdtrain.engine.events import StoppedEarly


@dataclass(frozen=True)
class RunResult:
    """What a run leaves behind.

    Attributes:
        step, epochs, samples_seen: done since the start of training.
        finished: whether all of it is done, the last validation too, or as much as was worth waiting for.
        metrics: of the last validation, or without validation data of the last training steps.
        weights_hash: equal on all ranks.
        stopped_by: what asked to stop, where that left something undone; else empty.
        best: the best validation since the start of training.
        stopped_early: why a finished run has trained less than its epochs.
    """

    step: int
    epochs: int
    samples_seen: int
    finished: bool
    metrics: Mapping[str, float]
    weights_hash: str
    stopped_by: str = ""
    best: Best | None = None
    stopped_early: StoppedEarly | None = None
