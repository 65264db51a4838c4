"""What the tests of the core share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests are imported by file, so their helpers need a folder to be found in.
_SUPPORT = str(Path(__file__).parent / "support")
if _SUPPORT not in sys.path:
    sys.path.insert(0, _SUPPORT)

from commands import Forker  # noqa: E402
from numpy_training import Data, write_data  # noqa: E402


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """22 records to train on and 9 to validate on: with a global batch of 8, 3 steps an epoch, the last one ragged."""
    return write_data(tmp_path_factory.mktemp("data"), train=22, validation=9)


@pytest.fixture(scope="session")
def digits_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A value for HVDTRAIN_CACHE_DIR that holds the digits already."""
    from hvdtrain.task.data_access import DataAccess
    from hvdtrain.tasks.digits.data import open_digits

    cache = tmp_path_factory.mktemp("cache")
    open_digits(DataAccess(None, cache / "data"))
    return cache


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    """Starts `hvdtrain` quickly; see there."""
    with Forker() as running:
        yield running
