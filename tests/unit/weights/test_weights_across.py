"""Weights between torch and Keras: in a process of its own, which loads both; see support/weights_across.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import Forker

TESTS = Path(__file__).parent / "support" / "weights_across.py"


@pytest.mark.timeout(900)
def test_weights_across_frameworks_and_runtimes(
    keras_forker: Forker, both_frameworks: list[str], tmp_path: Path
) -> None:
    keras_forker.run_tests(TESTS, tmp_path, both_frameworks)
