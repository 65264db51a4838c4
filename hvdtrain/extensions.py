"""What other installed packages add to hvdtrain, by Python's entry points (see docs/extending.md).

A package names what it adds in its own pyproject.toml, and needs no change here:

    [project.entry-points."hvdtrain.loggers"]
    mylogger = "my_package.my_logger:open_logger"
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from hvdtrain.errors import UsageError

LOGGERS = "hvdtrain.loggers"
LAUNCHERS = "hvdtrain.launchers"
OPTIMIZERS = "hvdtrain.optimizers"


def names_in(group: str) -> list[str]:
    """The names that installed packages add to `group`, sorted."""
    return sorted({point.name for point in entry_points(group=group)})


def load(group: str, name: str) -> Any:
    """What a package adds to `group` under `name`; None if no package does. Raises UsageError: two packages use the
    same name, or the package cannot be imported."""
    points = list(entry_points(group=group, name=name))
    if not points:
        return None
    if len({point.value for point in points}) > 1:
        raise UsageError(
            f"Several packages add {name!r} to {group}: {', '.join(map(_package, points))}.",
            "A name stands for one of them only.",
            "uninstall the packages that this job does not use.",
        )
    try:
        return points[0].load()
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"{name!r} of {group} cannot be imported from {points[0].value}: {error}.",
            f"The package {_package(points[0])} says that it is there.",
            "install the package again, with what it needs, or use another name.",
        ) from error


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown package"
