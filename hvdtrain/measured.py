"""What is measured of training besides the task's own measures: the parts of its time, and the built-in metrics.

This is the only list of them. Each one is a field with its row of facts; the meter, the sinks, the readers of run
folders, reports and `hvdtrain top` go through `PARTS` and `METRICS`. A new metric is one row here and what measures it
on a rank: a field of the same name in the adapters' `Sums`, or a line in `Meter._known`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from operator import add
from statistics import fmean
from typing import Any, Final, Literal, NamedTuple

from hvdtrain.rank_summary import RankSummary


@dataclass(frozen=True)
class Part:
    """A part of the time."""

    name: str
    # "work" of the rank itself, and its "wait" for others, which together are a step; the time of a "save"; what lies
    # "inside" of compute; what goes on "beside" other parts; and the time of "validation"
    kind: Literal["work", "wait", "save", "inside", "beside", "validation"]
    title: str  # for people
    series: int  # the number of its colour in charts


@dataclass(frozen=True)
class Metric:
    """A built-in metric."""

    name: str
    title: str  # of its chart; metrics with the same title share one
    line: str = ""  # the name of its line in the chart; "" where the page draws it otherwise, or not at all
    of: Literal["update", "rank"] = "update"  # what all ranks make together, or each rank
    # How the numbers of all ranks become one. Of an update that is so everywhere; those of ranks are all kept, and
    # become one in tables, charts and loggers. "": the meter knows how.
    reduced: Literal["mean", "max", ""] = ""
    kind: Literal["number", "count", "bytes", "share"] = "number"  # what it counts; a count is left out where it is 0
    digits: int | None = None  # after the point, in files; None: all
    live: tuple[str, str] | None = None  # its key in a heartbeat, and the head of its column in `hvdtrain top`

    def as_number(self, value: Any) -> Any:
        """One number for all ranks."""
        if self.of == "update":
            return value
        if isinstance(value, RankSummary):
            return value.max if self.reduced == "max" else value.mean
        return max(value) if self.reduced == "max" else fmean(value)

    def rounded(self, value: Any) -> Any:
        """As files have it."""
        return value if self.digits is None else round(value, self.digits)


def _part(kind: str, title: str, series: int) -> Any:
    return field(default=0.0, metadata={"kind": kind, "title": title, "series": series})


def _metric(title: str, unknown: Any = MISSING, **facts: Any) -> Any:
    """Args: `unknown`: the value that stands for "not known"; without one it always is."""
    return field(default=unknown, metadata={"title": title, **facts})


def _of_ranks(title: str, reduced: str, kind: str, live: tuple[str, str]) -> Any:
    return _metric(title, (), line="largest", of="rank", reduced=reduced, kind=kind, live=live)


@dataclass(frozen=True)
class Seconds:
    """Where wall-clock time went, for one rank. The first four do not overlap, and are all of the time that is trained.

    Attributes:
        data: waiting for the loader.
        allreduce: waiting for other ranks' gradients after the own ones were ready.
        checkpoint: saving.
        compute: all the rest.
        host_to_device, forward, backward, optimizer: parts of `compute`; 0 where they cannot be told apart.
        allreduce_hidden: communication that went on beside `compute`, at most.
        validation: of whole validations, which `Evaluated` tells.
    """

    data: float = _part("work", "waiting for data", 4)
    compute: float = _part("work", "compute", 0)
    allreduce: float = _part("wait", "waiting for others (allreduce)", 1)
    checkpoint: float = _part("save", "checkpoint", 3)
    host_to_device: float = _part("inside", "host to device", 6)
    forward: float = _part("inside", "forward", 0)
    backward: float = _part("inside", "backward", 5)
    optimizer: float = _part("inside", "optimizer", 2)
    allreduce_hidden: float = _part("beside", "allreduce beside compute", 9)
    validation: float = _part("validation", "validation", 7)

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(*map(add, vars(self).values(), vars(other).values()))

    @property
    def total(self) -> float:
        return self.data + self.compute + self.allreduce + self.checkpoint

    def known(self) -> dict[str, float]:
        """By name: the first four, and of the others those that were measured."""
        return {name: value for name, value in vars(self).items() if value or name in ALWAYS_KNOWN}


class SummarizedSeconds(NamedTuple):
    """Where the time of all ranks went since the last reading, without a list of all ranks."""

    own: Seconds  # of this rank, which only this rank knows
    parts: Mapping[str, RankSummary]  # of each part that was measured
    work: RankSummary  # of data and compute together: the ranks with the largest are those that the others wait for
    step: RankSummary  # of data, compute and allreduce together
    waits: RankSummary  # of the share of that in which a rank waits

    @property
    def mean(self) -> Seconds:
        """Over ranks."""
        return Seconds(**{part: of_ranks.mean for part, of_ranks in self.parts.items()})

    def as_json(self, digits: int, every_name: bool = False) -> dict[str, Any]:
        """As files have it. Args: `every_name`: with the ranks that have the largest values of every part, and not
        only of those that the others wait for."""
        return {
            "ranks": self.step.count,
            "parts": {part: ranks.as_json(digits, every_name, counts=False) for part, ranks in self.parts.items()},
            "work": self.work.as_json(digits, counts=False),
            "step": self.step.as_json(digits, every_name, counts=False),
        }


@dataclass(frozen=True, kw_only=True)
class BuiltInMetrics:
    """Built-in metrics since the last reading, equal on all ranks.

    Attributes:
        masked: records of the plan that were not measured because they are damaged.
        skipped: updates that were not made because gradients overflowed (fp16).
        samples_per_second: over all ranks, by the slowest rank's clock.
        grad_norm: mean norm of the reduced gradients before clipping, over updates and ranks, where --log-grad-norm,
            --max-grad-norm or fp16 asks for it; else None.
        grad_norm_peak: the largest of these norms.
        memory: resident bytes of each rank's process.
        device_memory: bytes that arrays on each rank's GPU took at most since the start; () on CPUs.
        device_use: share of the last moments in which each rank's GPU was busy, 0 to 1; () where that is not known.

    Where ranks are summarized, the last three are summaries.
    """

    masked: int = _metric("Damaged records", 0, kind="count")
    skipped: int = _metric("Skipped updates", 0, kind="count")
    samples_per_second: float = _metric("Throughput, samples per second", digits=1)
    grad_norm: float | None = _metric("Gradient norm", None, line="mean", reduced="mean")
    grad_norm_peak: float | None = _metric("Gradient norm", None, line="peak", reduced="max")
    memory: tuple[int, ...] | RankSummary = _of_ranks(
        "Memory of the largest worker, bytes", "max", "bytes", ("memory", "memory")
    )
    device_memory: tuple[int, ...] | RankSummary = _of_ranks(
        "GPU memory of the fullest GPU, bytes", "max", "bytes", ("gpu_memory", "GPU memory")
    )
    device_use: tuple[float, ...] | RankSummary = _of_ranks(
        "Busiest GPU, share of time", "mean", "share", ("gpu_use", "GPU")
    )


PARTS: Final = tuple(Part(part.name, **part.metadata) for part in fields(Seconds))
METRICS: Final = (
    Metric("lr", "Learning rate", "learning rate"),  # which is set, not measured
    *(Metric(metric.name, **metric.metadata) for metric in fields(BuiltInMetrics)),
)


LINE_KEYS: Final = frozenset(
    ("split", "epoch", "step", "time", "samples", "seconds", "rank_seconds", "sets", "event", "best")
)
"""What else a line of metrics.jsonl has, besides `METRICS` and the task's measures."""


def parts_of(*kinds: str) -> tuple[str, ...]:
    """The names of the parts of these kinds."""
    return tuple(part.name for part in PARTS if part.kind in kinds)


WORK: Final = parts_of("work")
STEP: Final = parts_of("work", "wait")
"""What a step's time is made of."""

ALWAYS_KNOWN: Final = parts_of("work", "wait", "save")
INSIDE: Final = parts_of("inside")
BESIDE: Final = parts_of("beside")
TIMED: Final = parts_of("wait", "inside", "beside")
"""What an adapter measures of each step."""

REST: Final = "other compute"
"""What is left of "compute" where its parts are known."""

DISJOINT: Final = (
    *(part for part in WORK if part != "compute"),
    *(*INSIDE, "compute", REST),
    *parts_of("wait", "save", "validation"),
)
"""Parts that do not overlap, where "compute" is left out if its parts are known."""


def known_metrics(event: Any) -> Iterator[tuple[Metric, Any]]:
    """The metrics of an event that are known, each with what the event says: one number, or one of each rank."""
    for metric in METRICS:
        value = getattr(event, metric.name)
        if value not in (None, ()) and (value or metric.kind != "count"):
            yield metric, value


def mean_seconds(event: Any) -> dict[str, float]:
    """Part of the time → seconds since the last reading, the mean over ranks; of the parts that were measured."""
    if event.summary is not None:
        return {part: of_ranks.mean for part, of_ranks in event.summary.parts.items()}
    ranks = [rank.known() for rank in event.rank_seconds]
    measured = [part.name for part in PARTS if any(part.name in rank for rank in ranks)]
    return {part: sum(rank.get(part, 0.0) for rank in ranks) / len(ranks) for part in measured}
