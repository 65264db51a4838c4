"""What the tests of the pictures share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Tests are imported by file, so their helpers need a folder to be found in.
_SUPPORT = str(Path(__file__).parent / "support")
if _SUPPORT not in sys.path:
    sys.path.insert(0, _SUPPORT)

from picture_files import write_cifar10, write_mnist  # noqa: E402


@pytest.fixture(scope="session")
def cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """50 + 30 records to train on and 20 to validate on, in CIFAR-10's binary version."""
    return write_cifar10(tmp_path_factory.mktemp("cifar10"))


@pytest.fixture(scope="session")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 records to train on and 20 to validate on, where torchvision's download puts them."""
    return write_mnist(tmp_path_factory.mktemp("mnist"))
