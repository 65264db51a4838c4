"""The tests of the tf.data adapter, in a process of their own; see support/tensorflow_cases.py."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_the_tensorflow_adapter() -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(SUPPORT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "KERAS_BACKEND": "tensorflow",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(SUPPORT / "tensorflow_cases.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
