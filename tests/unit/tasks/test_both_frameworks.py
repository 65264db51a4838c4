"""Torch and Keras agree: in a process of its own, which loads both; see support/both_frameworks.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import Forker

TESTS = Path(__file__).parent / "support" / "both_frameworks.py"


@pytest.mark.timeout(600)
def test_what_both_frameworks_must_agree_on(keras_forker: Forker, both_frameworks: list[str], tmp_path: Path) -> None:
    keras_forker.run_tests(TESTS, tmp_path, both_frameworks)
