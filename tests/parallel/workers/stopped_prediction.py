"""Predicts until it was asked to stop, after the first part: stopped_prediction.py RUN OUTPUT."""

from __future__ import annotations

import sys
from pathlib import Path

from hvdtrain.run.prediction import predict_set
from hvdtrain.run.trained_model import VALIDATION, open_trained
from hvdtrain.topology import Topology

if __name__ == "__main__":
    run, output = map(Path, sys.argv[1:])
    part = output.with_name(f"{output.name}.parts") / "part-000000.npz"
    with open_trained(run, None, Topology.single()) as trained:
        done = predict_set(trained, VALIDATION, None, output, False, lambda: "stop" if part.exists() else None)
    assert done is None
