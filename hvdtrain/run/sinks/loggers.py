"""The loggers that `--loggers` names: ours, and those that other packages add (`hvdtrain.extensions`)."""

import importlib
import importlib.util
import logging
from collections.abc import Iterable

from hvdtrain import extensions
from hvdtrain.config.logger_options import LOGGERS, named_loggers
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.errors import UsageError
from hvdtrain.run.sinks.logger_api import Logger

_AUTO = "tensorboard"

_log = logging.getLogger("hvdtrain.run")


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
    names = named_loggers(config)
    if config.loggers == "auto" and not names and _is_usable(load_logger(_AUTO)):
        names = (_AUTO,)
    return {name: load_logger(name) for name in names}


def _is_usable(logger: Logger) -> bool:
    if not is_installed(logger):
        return False
    try:
        logger.prepare()
    except Exception as error:
        kind = type(error).__name__
        what = f"{logger.package} cannot be imported, so that there are no metrics for {logger.title}"
        _log.warning("%s: %s: %s", what, kind, error)
        return False
    return True
