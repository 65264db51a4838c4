"""What the tests of `hvdtrain bench step` share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests are imported by file, so their helpers need a folder to be found in; commands run as in the core's tests.
_FOLDER = Path(__file__).parents[1] / "core" / "support"
if str(_FOLDER) not in sys.path:
    sys.path.insert(0, str(_FOLDER))

from commands import Forker  # noqa: E402


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    """Starts `hvdtrain` quickly; see there."""
    with Forker() as running:
        yield running
