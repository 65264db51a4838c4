"""What the tests of attacks share. Each of them first shows that the attack works where nothing guards against it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))

from trap import Trap  # noqa: E402


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    """Its mark is in a folder of its own, so that no command can make it by chance."""
    folder = tmp_path / "trap"
    folder.mkdir()
    return Trap(folder / "mark")
