"""Installed versions of what decides a run's numbers, from package metadata: nothing is imported for it."""

from __future__ import annotations

import platform
from importlib import metadata

from hvdtrain.version import __version__

PACKAGES = ("horovod", "torch", "tensorflow", "keras", "torchvision", "mpi4py", "numpy")


def versions() -> dict[str, str]:
    """Name → version of Python, hvdtrain and those of `PACKAGES` that are installed."""
    found = {"python": platform.python_version(), "hvdtrain": __version__}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
