"""What the tests of several rooms share; their helpers lie in support/, which pyproject.toml puts on the path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.commands import Forker
    from support.numpy_training import Data

# Test processes compute side by side, on small numbers: threads of theirs would only wait for each other, and waiting
# threads of OpenMP keep a core busy. It has to be said before a framework is loaded.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
    os.environ.setdefault(_variable, "1")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """22 records to train on and 9 to validate on: with a global batch of 8, 3 steps an epoch, the last one ragged."""
    from support.numpy_training import write_data

    return write_data(tmp_path_factory.mktemp("data"), train=22, validation=9)


@pytest.fixture(scope="session")
def digits_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A value for HVDTRAIN_CACHE_DIR that holds the digits already."""
    from hvdtrain.task.data_access import DataAccess
    from hvdtrain.tasks.digits import open_split

    cache = tmp_path_factory.mktemp("cache")
    open_split(DataAccess(None, cache / "data"), "train")
    return cache


@pytest.fixture(scope="session")
def forker() -> Forker:
    """Starts `hvdtrain` and other programs quickly, in a process that has torch; see there."""
    from support.commands import Forker

    return Forker("torch")


@pytest.fixture(scope="session")
def keras_forker() -> Forker:
    """The same with TensorFlow and Keras."""
    from support.commands import Forker

    return Forker("tensorflow")
