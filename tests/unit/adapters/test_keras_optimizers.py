"""Keras trains as torch does: in a process of its own, which loads both; see support/keras_and_torch.py."""

from __future__ import annotations

from pathlib import Path

from support.commands import Forker

TESTS = Path(__file__).parents[2] / "support" / "scripts" / "keras_and_torch.py"


def test_keras_trains_as_torch_does(keras_forker: Forker, both_frameworks: list[str], tmp_path: Path) -> None:
    keras_forker.run_tests(TESTS, tmp_path, both_frameworks)
