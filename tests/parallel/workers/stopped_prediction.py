"""Predicts until it was asked to stop, after the first part: stopped_prediction.py RUN OUTPUT NAME=PATTERN."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hvdtrain.errors import UsageError
from hvdtrain.run.prediction import predict_set
from hvdtrain.run.trained_model import open_trained
from hvdtrain.set_names import named_patterns
from hvdtrain.topology import Topology

if __name__ == "__main__":
    run, output = map(Path, sys.argv[1:3])
    part = output.with_name(f"{output.name}.parts") / "part-000000.npz"
    with open_trained(run, None, Topology.single()) as trained:
        with pytest.raises(UsageError, match="There are 2 sets of records: few, whole"):
            predict_set(trained, None, output, False, lambda: None)
        patterns = named_patterns(sys.argv[3:], "--set")
        done = predict_set(trained, patterns, output, False, lambda: "stop" if part.exists() else None)
    assert done is None
