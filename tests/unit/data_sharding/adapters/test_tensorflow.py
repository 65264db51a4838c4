"""The tests of the tf.data adapter, in a process of their own; see support/tensorflow_cases.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from support.commands import Forker

TESTS = Path(__file__).parents[1] / "support" / "tensorflow_cases.py"


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_the_tensorflow_adapter(keras_forker: Forker, tmp_path: Path) -> None:
    keras_forker.run_tests(TESTS, tmp_path)
