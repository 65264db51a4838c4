"""Prints pyproject.toml's dependencies with those of some extras, one requirement a line: requirements.py EXTRA,EXTRA

The image installs them before the sources are there, so that a change of the sources installs nothing again.
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: str, extras: list[str]) -> list[str]:
    """The requirements in the text of a pyproject.toml; KeyError for an extra that it does not have."""
    project = tomllib.loads(pyproject)["project"]
    return [*project["dependencies"], *(name for extra in extras for name in project["optional-dependencies"][extra])]


if __name__ == "__main__":
    text = Path("pyproject.toml").read_text(encoding="utf-8")
    print("\n".join(requirements(text, [extra for extra in sys.argv[1].split(",") if extra])))
