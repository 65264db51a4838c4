"""A browser for every test here; tests are skipped where this machine has none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests are imported by file, so their helpers need a folder to be found in.
if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))

from chromium import Browser  # noqa: E402
from needs import browser as path_of_browser  # noqa: E402
from needs import obstacle  # noqa: E402


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium."""
    if reason := obstacle():
        pytest.skip(reason)
    program = path_of_browser()
    assert program is not None
    with Browser(program) as running:
        yield running
