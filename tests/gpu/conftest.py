"""Every test of this folder is skipped, with one plain sentence, where torch has no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.gpu import NEEDED, obstacle

_FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = obstacle()
    if reason is None:
        return
    skipped = pytest.mark.skip(reason=f"{reason} Needed: {NEEDED}")
    for item in items:
        if _FOLDER in item.path.parents:
            item.add_marker(skipped)


@pytest.fixture
def gpu() -> torch.device:
    return torch.device("cuda", 0)
