"""Keras trains as torch does: in a process of its own, which loads both; see support/keras_and_torch.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "support"
ROOT = Path(__file__).parents[3]


def test_keras_trains_as_torch_does(both_frameworks: list[str]) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SUPPORT), str(ROOT)]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "KERAS_BACKEND": "tensorflow",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations", "5"]
    done = subprocess.run(
        [*command, *both_frameworks, str(SUPPORT / "keras_and_torch.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
