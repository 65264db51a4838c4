"""Evaluation and prediction as function calls, for notebooks and scripts: one process."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvdtrain.cli.python_calls.own_job import require_alone
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.run.evaluation import evaluate_sets
from hvdtrain.run.prediction import Predicted, predict_set
from hvdtrain.run.prediction_files import format_of
from hvdtrain.run.trained_model import VALIDATION, open_trained
from hvdtrain.set_names import require_set_name
from hvdtrain.stop_requests import StopSignals
from hvdtrain.task.task import Task
from hvdtrain.topology import detect_topology


def evaluate(
    run: str | Path,
    *,
    data_dir: str | None = None,
    sets: Mapping[str, str | None] | None = None,
    task: type[Task] | None = None,
) -> dict[str, Any]:
    """Measure a run's model in this process, as `hvdtrain evaluate` does, without writing files.

    Args:
        run: a run folder, or the folder of a checkpoint.
        data_dir: folder or URL of the data (default: that of the training).
        sets: name → pattern of files in it, or None for the training's set of that name (default: all sets that
            training has validated on).
        task: the task's class, where it is defined in a script or notebook.

    Returns:
        Name of a set → "records", "left_out", "fingerprint", "as_in_training" (whether the training has validated on
        just these records; None: on no set of this name), "measures"; of a classification also "classes" and
        "confusion".

    Raises:
        UsageError: no checkpoint, task or records, or this is a worker of a job.
        HvdtrainError: the loss is not finite, or this was interrupted.
    """
    topology = detect_topology(os.environ)
    require_alone(topology, "hvdtrain.evaluate()", "evaluate RUN …")
    for name in sets or ():
        require_set_name(name, "hvdtrain.evaluate()")
    with (
        StopSignals("hvdtrain", answers=True) as signals,
        open_trained(Path(run), data_dir, topology, task) as trained,
    ):
        results = evaluate_sets(trained, sets or None, signals.asked)
    if results is None:
        raise _interrupted("evaluated")
    return {name: result.to_json() for name, result in results.items()}


def predict(
    run: str | Path,
    output: str | Path,
    *,
    data_dir: str | None = None,
    pattern: str | None = None,
    set_name: str | None = None,
    task: type[Task] | None = None,
    force: bool = False,
) -> Predicted:
    """Write what a run's model predicts into `output` (.npz, .jsonl, .parquet), as `hvdtrain predict` does.

    Args:
        pattern: the records, by their files in the data folder (default: those that training has validated on).
        set_name: which of the training's sets, if it has validated on several; instead of a pattern.
        force: replace the file if it is there.

    The other arguments and errors are those of `evaluate`. Returns how many records were predicted, and how many
    damaged ones were left out.
    """
    topology = detect_topology(os.environ)
    require_alone(topology, "hvdtrain.predict()", "predict RUN --output FILE …")
    format_of(Path(output))
    if pattern is not None and set_name is not None:
        raise UsageError(
            f"hvdtrain.predict() was given the pattern {pattern} and the set {set_name}.",
            "One file holds the predictions of one set.",
            "give one of them.",
        )
    sets = {set_name or VALIDATION: pattern} if pattern is not None or set_name is not None else None
    with (
        StopSignals("hvdtrain", answers=True) as signals,
        open_trained(Path(run), data_dir, topology, task) as trained,
    ):
        done = predict_set(trained, sets, Path(output), force, signals.asked)
    if done is None:
        raise _interrupted("predicted")
    return done


def _interrupted(what: str) -> HvdtrainError:
    return HvdtrainError(f"Not all records were {what}.", "It was interrupted.", "call it again.")
