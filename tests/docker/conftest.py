"""Builds each image once and gives it to its tests. Nothing here runs unless it is asked for: `make docker-check` asks
for the image for CPUs, `make docker-check-cuda` for the one for CUDA."""

from __future__ import annotations

import os
import sys
import time
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
CUDA_IMAGE = "localhost/hvdtrain:check-cuda"
# As in docs/docker.md.
CUDA_ARGUMENTS = ("TORCH_INDEX=", "EXTRAS=torch,torchvision,mpi,s3,cuda")


def is_asked_for(variable: str) -> bool:
    """Whether the environment's variable asks for the tests of an image."""
    return os.environ.get(variable) == "1"


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The container engine of this machine."""
    if not any(is_asked_for(variable) for variable in ("HVDTRAIN_DOCKER_CHECK", "HVDTRAIN_DOCKER_CHECK_CUDA")):
        pytest.skip("builds and runs the image, which takes many minutes: `make docker-check` does it")
    found = find_engine()
    if found is None:
        pytest.skip("no container engine: start Docker's daemon, or `apt-get install podman runc`")
    return found


@pytest.fixture(scope="session")
def image(engine: Engine) -> str:
    """HVDTRAIN_DOCKER_IMAGE if there is such a variable, else the image built from this checkout."""
    if not is_asked_for("HVDTRAIN_DOCKER_CHECK"):
        pytest.skip("builds and runs the image for CPUs: `make docker-check` does it")
    return given_or_built(engine, "HVDTRAIN_DOCKER_IMAGE", IMAGE)


@pytest.fixture(scope="session")
def cuda_image(engine: Engine) -> str:
    """HVDTRAIN_DOCKER_CUDA_IMAGE if there is such a variable, else the image for CUDA built from this checkout."""
    if not is_asked_for("HVDTRAIN_DOCKER_CHECK_CUDA"):
        pytest.skip("builds and runs the image for CUDA, which downloads 3 GB: `make docker-check-cuda` does it")
    return given_or_built(engine, "HVDTRAIN_DOCKER_CUDA_IMAGE", CUDA_IMAGE, *CUDA_ARGUMENTS)


def given_or_built(engine: Engine, variable: str, name: str, *arguments: str) -> str:
    """The image that the environment's variable names, else `name`, built from this checkout with build arguments."""
    if variable in os.environ:
        return os.environ[variable]
    print(f"base image: {ensure_base(engine)}")
    begin = time.monotonic()
    flags = [word for argument in arguments for word in ("--build-arg", argument)]
    engine.call("build", *engine.build_flags, *flags, "-t", name, str(ROOT), timeout=BUILD_SECONDS)
    size = int(engine.call("image", "inspect", "--format", "{{.Size}}", name).stdout)
    print(f"{name}: built in {(time.monotonic() - begin) / 60:.1f} minutes, {size / 1e9:.1f} GB")
    return name


@pytest.fixture
def runs(engine: Engine) -> Iterator[str]:
    """An empty volume for run folders."""
    with engine.volume() as name:
        yield name
