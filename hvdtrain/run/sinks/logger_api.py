"""What a logger is: a program that keeps or shows metrics; and which ones a run has. To add one, see docs/extending.md.

A module offers a `Logger` as its LOGGER. For one of ours, its name and module stand in `config.logger_options.LOGGERS`;
another package names it as an entry point, and `--loggers NAME` then finds it in the same way:

    [project.entry-points."hvdtrain.loggers"]
    mylogger = "my_package.my_logger:LOGGER"
"""

import importlib
import importlib.util
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from hvdtrain import extensions
from hvdtrain.config.logger_options import LOGGERS, named_loggers
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.engine.events import Event
from hvdtrain.errors import UsageError
from hvdtrain.run.sinks.sink import SinkContext

_AUTO: Final = "tensorboard"

_log = logging.getLogger("hvdtrain.run")

Outcome = Literal["finished", "stopped", "failed"]
"""How a run ended; one that has stopped can be continued."""


@dataclass(frozen=True, slots=True)
class Point:
    """Numbers that were measured at one step."""

    step: int  # updates done
    time: float  # of `time.time()`
    values: Mapping[str, float]  # by name: "train/loss", "validation/accuracy", "lr", "seconds/data" and more
    histograms: Mapping[str, Any] = field(default_factory=dict)  # by name, as the logger takes them
    pictures: Mapping[str, Any] = field(default_factory=dict)  # by name, as the logger takes them


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

    `open` begins to write the run of a context, of which so many updates are done. It is called on rank 0 when the run
    starts, in the thread that then calls the writer.
    """

    title: str  # its name for people
    open: Callable[[SinkContext, int], MetricsWriter]
    module: str = ""  # what must be installed, as Python calls it; "": nothing more
    package: str = ""  # the same, as pip calls it
    prepare: Callable[[], object] = lambda: None  # imports what it needs, before training
    further: Callable[[SinkContext], Sequence[Further]] = lambda _: ()  # what it receives besides metrics


def kept_run(file: Path) -> dict[str, str]:
    """Which run of another program this run folder belongs to, so that a resumed run goes on in it: what the logger
    wrote into `file`; {} where there is none, or nobody can read it."""
    try:
        kept = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def load_logger(name: str) -> Logger:
    """The logger of that name, which is known to be there; UsageError where a package adds something else."""
    if name in LOGGERS:
        logger = importlib.import_module(LOGGERS[name]).LOGGER
    else:
        logger = extensions.load(extensions.LOGGERS, name)
    if not isinstance(logger, Logger):
        raise UsageError(
            f"The logger {name!r} of another package is of type {type(logger).__name__}.",
            "A logger is a hvdtrain.run.sinks.logger_api.Logger.",
            "see docs/extending.md, or uninstall that package.",
        )
    return logger


def is_installed(logger: Logger) -> bool:
    """Whether what the logger needs is there. It is not imported."""
    return not logger.module or importlib.util.find_spec(logger.module) is not None


def require_loggers(names: Iterable[str]) -> None:
    """Import what these loggers need; UsageError where something is not installed, or cannot be imported."""
    for name in names:
        logger = load_logger(name)
        if not is_installed(logger):
            raise UsageError(
                f"The logger {name} is asked for, and the package {logger.package} is not installed.",
                "It would receive no metrics.",
                f"pip install 'hvdtrain[{name}]', or leave {name} out of --loggers.",
            )
        try:
            logger.prepare()
        except Exception as error:
            raise UsageError(
                f"The package {logger.package or name} cannot be imported: {type(error).__name__}: {error}.",
                f"The logger {name} would receive no metrics.",
                f"repair its installation, or leave {name} out of --loggers.",
            ) from error


def loggers_of(config: TrainConfig) -> dict[str, Logger]:
    """The loggers of a run: those that are named, and with auto TensorBoard, if it is installed and can be imported."""
    loggers = {name: load_logger(name) for name in named_loggers(config)}
    if loggers or config.loggers != "auto" or not is_installed(usual := load_logger(_AUTO)):
        return loggers
    try:
        usual.prepare()
    except Exception as error:
        what = f"{usual.package} cannot be imported, so that there are no metrics for {usual.title}"
        _log.warning("%s: %s: %s", what, type(error).__name__, error)
        return {}
    return {_AUTO: usual}
