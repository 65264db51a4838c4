"""The packages of loggers: imported before training, without what they would import for others."""

import importlib
import importlib.util
import logging
import os
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from hvdtrain.errors import UsageError
from hvdtrain.run.sinks.hidden_modules import hidden
from hvdtrain.run.sinks.tensorboard_messages import messages


class _Package(NamedTuple):
    """What a logger needs.

    Attributes:
        module: to import.
        name: of the package, for `pip install`.
        settings: environment variables, unless they are set: nothing is sent anywhere but to the server that is named,
            and the terminal is left to us.
    """

    module: str
    name: str
    settings: Mapping[str, str]


_WANDB_SETTINGS: Final = {
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",  # it writes nothing over the bar, and asks for no key on the terminal
    "WANDB_CONSOLE": "off",  # standard output and error stay as they are
}
_PACKAGES: Final[Mapping[str, _Package]] = {
    "tensorboard": _Package("tensorboardX", "tensorboardX", {}),
    "wandb": _Package("wandb", "wandb", _WANDB_SETTINGS),
    "mlflow": _Package("mlflow", "mlflow-skinny", {"MLFLOW_DISABLE_TELEMETRY": "true"}),
}

_log = logging.getLogger("hvdtrain.run")


def is_installed(logger: str) -> bool:
    """Whether the package of a logger is there. It is not imported."""
    return importlib.util.find_spec(_PACKAGES[logger].module) is not None


def is_usable(logger: str) -> bool:
    """Whether the package of a logger is there; it is imported. One that cannot be is told in a warning."""
    if not is_installed(logger):
        return False
    try:
        import_package(logger)
    except Exception as error:
        name, kind = _PACKAGES[logger].name, type(error).__name__
        _log.warning("%s cannot be imported, so that there are no metrics for %s: %s: %s", name, logger, kind, error)
        return False
    return True


def import_package(logger: str) -> None:
    """Import what the logger needs, and no framework that is not there yet. Raises what the import raises."""
    module, _, settings = _PACKAGES[logger]
    for variable, value in settings.items():
        os.environ.setdefault(variable, value)
    if logger == "tensorboard":
        messages()
        return
    with hidden("torch", "tensorflow"):
        importlib.import_module(module)


def require_packages(loggers: Iterable[str]) -> None:
    """Import the packages of `loggers`.

    Raises:
        UsageError: one of them is not installed, or cannot be imported.
    """
    for logger in loggers:
        package = _PACKAGES[logger].name
        if not is_installed(logger):
            raise UsageError(
                f"The logger {logger} is asked for, and the package {package} is not installed.",
                "It would be given no metrics.",
                f"pip install 'hvdtrain[{logger}]', or leave {logger} out of --loggers.",
            )
        try:
            import_package(logger)
        except Exception as error:
            raise UsageError(
                f"The package {package} cannot be imported: {type(error).__name__}: {error}.",
                f"The logger {logger} would be given no metrics.",
                f"repair its installation, or leave {logger} out of --loggers.",
            ) from error
