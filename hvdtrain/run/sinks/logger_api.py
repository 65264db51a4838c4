"""What a logger is: a program that keeps or shows metrics. To add one, see docs/extending.md.

A module offers a `Logger` as its LOGGER. For one of ours, its name and module stand in `config.logger_options.LOGGERS`;
another package names it as an entry point, and `--loggers NAME` then finds it in the same way:

    [project.entry-points."hvdtrain.loggers"]
    mylogger = "my_package.my_logger:LOGGER"
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from hvdtrain.engine.events import Event
from hvdtrain.files import write_json
from hvdtrain.run.sinks.sink import SinkContext

Outcome = Literal["finished", "stopped", "failed"]
"""How a run ended; one that has stopped can be continued."""


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


class MetricsWriter(Protocol):
    """A logger at work for one run. One thread calls all methods, and each of them may take its time."""

    def write(self, points: Sequence[Point]) -> None:
        """Take points, in the order of time."""

    def close(self, outcome: Outcome) -> None:
        """The run has ended; nothing is written any more."""


Further = Callable[[Event], Point | None]
"""What else a logger receives after an event, if anything."""


@dataclass(frozen=True)
class Logger:
    """A logger that `--loggers` can name.

    Attributes:
        title: its name for people.
        open: begins to write the run of a context, of which so many updates are done. Called on rank 0 when the run
            starts, in the thread that then calls the writer.
        module, package: what must be installed, as Python and as pip call it; "": nothing more.
        prepare: imports what it needs, before training.
        further: what it receives besides metrics.
    """

    title: str
    open: Callable[[SinkContext, int], MetricsWriter]
    module: str = ""
    package: str = ""
    prepare: Callable[[], object] = lambda: None
    further: Callable[[SinkContext], Sequence[Further]] = lambda _: ()


def kept_run(file: Path) -> dict[str, str]:
    """Which run of another program this run folder belongs to, so that a resumed run goes on in it: what `keep_run`
    wrote into `file`; {} where there is none, or nobody can read it."""
    try:
        kept = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def keep_run(file: Path, **facts: str) -> None:
    """Write down which run it is. Raises OSError."""
    write_json(file, facts)
