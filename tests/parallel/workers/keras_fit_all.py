"""One rank of the Keras tests: `keras_fit_all.py FOLDER [NAME …]` writes rank_N.json and rank_N.npz there.

NAMEs are cases and checks; without any, it does all. Rank 0 first builds a model more than the others, so that in all
that follows its layers' automatic names differ from theirs.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import keras_fit_cases as cases
import keras_fit_checks as checks
import numpy as np

import hvdtrain.keras as hvd


def main(folder: Path, names: list[str]) -> None:
    hvd.init()
    if hvd.rank() == 0:
        cases.dense_model()
    arrays: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for name, case in _chosen(cases.cases(hvd.size()), names).items():
        started = time.monotonic()
        arrays.update({f"{name}/{i}": w for i, w in enumerate(checks.train_case(case))})
        seconds[name] = time.monotonic() - started
    results: dict[str, Any] = {"rank": hvd.rank(), "size": hvd.size(), "seconds": seconds}
    actions = {
        "metrics": checks.metrics_of_uneven_shards,
        "two_outputs": lambda: checks.losses_of_two_outputs(traced_before=False),
    }
    if hvd.size() > 1:
        actions |= {
            "two_outputs_traced_before": lambda: checks.losses_of_two_outputs(traced_before=True),
            "gradients": checks.gradients_of_all_kinds,
            "early_stopping": checks.early_stopping,
            "warmup": checks.warmup_curve,
            "save_and_load": lambda: checks.save_and_load(folder),
            "loaded_on_one_rank": lambda: checks.loaded_on_one_rank(folder),
            "adapted_on_one_rank": checks.adapted_on_one_rank,
            "control": checks.control_without_wrapper,
            "refusals": checks.refusals,
        }
    else:
        actions["metric_state_law"] = checks.metric_state_law
    if hvd.size() == 3:
        arrays.update({f"normalized/{i}": w for i, w in enumerate(checks.normalization_statistics())})
    for name, action in _chosen(actions, names).items():
        started = time.monotonic()
        results[name] = action()
        seconds[name] = time.monotonic() - started
    np.savez(folder / f"rank_{hvd.rank()}.npz", **arrays)
    (folder / f"rank_{hvd.rank()}.json").write_text(json.dumps(results))
    hvd.shutdown()


def _chosen(all_: dict[str, Any], names: list[str]) -> dict[str, Any]:
    return {name: value for name, value in all_.items() if not names or name in names}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
