"""Packages of others beside hvdtrain, as pip leaves them: a module, and its metadata with entry points."""

from __future__ import annotations

import os
from pathlib import Path


def install(folder: Path, package: str, module: str, points: str) -> dict[str, str]:
    """Put a package into a folder; returns the environment in which a process finds it.

    Args:
        package: its name, such as "my-logger"; its module is my_logger.
        module: the text of that module.
        points: the text of its entry points, with their group as a heading.
    """
    name = package.replace("-", "_")
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(points)
    (folder / f"{name}.py").write_text(module)
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
