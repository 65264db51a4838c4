"""Builds the image once and gives it to all tests. Nothing here runs unless it is asked for: `make docker-check`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests are imported by file, so their helpers need a folder to be found in.
_SUPPORT = str(Path(__file__).parent / "support")
if _SUPPORT not in sys.path:
    sys.path.insert(0, _SUPPORT)

from base_image import ensure_base  # noqa: E402
from engine import BUILD_SECONDS, Engine, find_engine  # noqa: E402

ROOT = Path(__file__).parents[2]
IMAGE = "localhost/hvdtrain:check"


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The container engine of this machine."""
    if os.environ.get("HVDTRAIN_DOCKER_CHECK") != "1":
        pytest.skip("builds and runs the image, which takes many minutes: `make docker-check` does it")
    found = find_engine()
    if found is None:
        pytest.skip("no container engine: start Docker's daemon, or `apt-get install podman runc`")
    return found


@pytest.fixture(scope="session")
def image(engine: Engine) -> str:
    """HVDTRAIN_DOCKER_IMAGE if there is such a variable, else the image built from this checkout."""
    if "HVDTRAIN_DOCKER_IMAGE" in os.environ:
        return os.environ["HVDTRAIN_DOCKER_IMAGE"]
    print(f"base image: {ensure_base(engine)}")
    engine.call("build", *engine.build_flags, "-t", IMAGE, str(ROOT), timeout=BUILD_SECONDS)
    return IMAGE


@pytest.fixture
def runs(engine: Engine) -> Iterator[str]:
    """An empty volume for run folders."""
    with engine.volume() as name:
        yield name
