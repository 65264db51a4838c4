"""Prints pyproject.toml's dependencies with those of some extras, one requirement a line: requirements.py EXTRA,EXTRA

The image installs them before the sources are there, so that a change of the sources installs nothing again.
`requirements.py --build-only EXTRA,EXTRA` prints those that only the build of Horovod needs; the others leave them out.
"""

import sys
import tomllib
from pathlib import Path

# CUDA's compiler. What Horovod loads when it runs comes with PyTorch's build for CUDA.
BUILD_ONLY = {"cuda"}


def requirements(pyproject: str, extras: list[str]) -> list[str]:
    """The requirements of the image in the text of a pyproject.toml; KeyError for an extra that it does not have."""
    project = tomllib.loads(pyproject)["project"]
    of_image = [project["optional-dependencies"][extra] for extra in extras if extra not in BUILD_ONLY]
    return [*project["dependencies"], *(name for names in of_image for name in names)]


def build_requirements(pyproject: str, extras: list[str]) -> list[str]:
    """The requirements of the extras that only the build of Horovod needs; KeyError as above."""
    of_extra = tomllib.loads(pyproject)["project"]["optional-dependencies"]
    return [name for extra in extras if extra in BUILD_ONLY for name in of_extra[extra]]


def main(arguments: list[str]) -> None:
    """Prints what the command line asks for."""
    choose = build_requirements if "--build-only" in arguments else requirements
    extras = [extra for extra in arguments[-1].split(",") if extra]
    for requirement in choose(Path("pyproject.toml").read_text(encoding="utf-8"), extras):
        print(requirement)


if __name__ == "__main__":
    main(sys.argv[1:])
