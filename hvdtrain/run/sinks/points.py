"""What is measured at one step as named numbers: the form in which other programs take metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from hvdtrain.engine import events
from hvdtrain.engine.events import Seconds

PARTS: Final = tuple(part.name for part in fields(Seconds))
"""Of the time: data, compute, allreduce, checkpoint."""


@dataclass(frozen=True, slots=True)
class Point:
    """Numbers that were measured at one step.

    Attributes:
        step: updates done.
        time: of `time.time()`.
        values: name → number: "train/loss", "validation/accuracy", "lr", "seconds/data" and more.
        histograms, pictures: name → one as the logger takes it that asked for it.
    """

    step: int
    time: float
    values: Mapping[str, float]
    histograms: Mapping[str, Any] = field(default_factory=dict)
    pictures: Mapping[str, Any] = field(default_factory=dict)


def training_point(event: events.Logged, time: float) -> Point:
    """Seconds are means over ranks since the last point, memory is that of the rank with the most."""
    values = {f"train/{name}": value for name, value in event.values.items()}
    values |= {"lr": event.lr, "samples_per_second": event.samples_per_second, **beside_measures(event)}
    values |= {f"seconds/{part}": mean for part, mean in mean_seconds(event).items()}
    return Point(event.step, time, values)


def validation_point(event: events.Evaluated, time: float) -> Point:
    """The means over the validation data, and how long that took."""
    values = {f"validation/{name}": value for name, value in event.values.items()}
    return Point(event.step, time, {**values, "seconds/validation": event.seconds})


def beside_measures(event: events.Logged) -> dict[str, float]:
    """What is not known of every run or every step: norms of gradients, memory, records and updates left out."""
    known: dict[str, float | None] = {
        "grad_norm": event.grad_norm,
        "grad_norm_peak": event.grad_norm_peak,
        "memory": max(event.memory, default=None),
        "device_memory": max(event.device_memory, default=None),
        "device_use": sum(event.device_use) / len(event.device_use) if event.device_use else None,
        "masked": event.masked or None,
        "skipped": event.skipped or None,
    }
    return {name: value for name, value in known.items() if value is not None}


def mean_seconds(event: events.Logged) -> dict[str, float]:
    """Part of the time → seconds since the last reading, the mean over ranks; of the parts that were measured."""
    ranks = [rank.told() for rank in event.rank_seconds]
    parts = [part for part in PARTS if any(part in rank for rank in ranks)]
    return {part: sum(rank.get(part, 0.0) for rank in ranks) / len(ranks) for part in parts}
