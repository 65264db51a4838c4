"""What is measured at one step as named numbers: the form in which other programs take metrics."""

from hvdtrain.engine import events
from hvdtrain.measured import PARTS, known_metrics
from hvdtrain.run.sinks.logger_api import Point


def training_point(event: events.Logged, time: float) -> Point:
    """Seconds are means over ranks since the last point, memory is that of the rank with the most."""
    values = {f"train/{name}": value for name, value in event.values.items()}
    values |= {metric.name: metric.as_number(value) for metric, value in known_metrics(event)}
    values |= {f"seconds/{part}": mean for part, mean in mean_seconds(event).items()}
    return Point(event.step, time, values)


def validation_point(event: events.Evaluated, time: float) -> Point:
    """The means over the validation data, and how long that took."""
    values = {f"validation/{name}": value for name, value in event.values.items()}
    return Point(event.step, time, {**values, "seconds/validation": event.seconds})


def mean_seconds(event: events.Logged) -> dict[str, float]:
    """Part of the time → seconds since the last reading, the mean over ranks; of the parts that were measured."""
    ranks = [rank.known() for rank in event.rank_seconds]
    measured = [part.name for part in PARTS if any(part.name in rank for rank in ranks)]
    return {part: sum(rank.get(part, 0.0) for rank in ranks) / len(ranks) for part in measured}
