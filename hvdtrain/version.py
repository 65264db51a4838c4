"""The one place that holds the version, and the installed versions of what decides a run's numbers."""

from __future__ import annotations

__version__ = "0.1.0"

PACKAGES = ("horovod", "torch", "tensorflow", "keras", "torchvision", "mpi4py", "numpy")


def versions() -> dict[str, str]:
    """Name → version of Python, hvdtrain and those of `PACKAGES` that are installed; nothing of them is imported."""
    if not _found:  # a start asks several times, and each package's whole description is read for it
        _found.update(_versions())
    return dict(_found)


_found: dict[str, str] = {}


def _versions() -> dict[str, str]:
    import platform  # Imported here: every command reads the version, few ask for the others.
    from importlib import metadata

    found = {"python": platform.python_version(), "hvdtrain": __version__}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
