"""Evaluation and prediction as function calls, for notebooks and scripts: one process."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from hvdtrain.cli.python_calls.own_job import require_alone
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.run import evaluation, prediction
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
    data_dir: str | Path | None = None,
    sets: Mapping[str, str | None] | None = None,
    task: type[Task] | None = None,
    on_corrupt: Literal["raise", "mask"] | None = None,
    max_corrupt: float | None = None,
) -> dict[str, Any]:
    """Measure a run's model in this process, as `hvdtrain evaluate` does, without writing files.

    Args:
        run: a run folder, or the folder of a checkpoint.
        data_dir: folder or URL of the data (default: that of the training).
        sets: name → pattern of files in it, or None for the training's set of that name (default: all sets that
            training has validated on).
        task: the task's class, where it is defined in a script or notebook.
        on_corrupt, max_corrupt: whether damaged records are left out, and which share of all may be (default: as the
            training).

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
    for name, pattern in _sets(sets).items():
        require_set_name(name, "hvdtrain.evaluate()")
        _require_pattern(pattern, f"hvdtrain.evaluate() has the set {name!r}")
    changes = _changes(data_dir, on_corrupt, max_corrupt)
    with (
        StopSignals("hvdtrain", answers=True, then=evaluation.THEN) as signals,
        open_trained(Path(run), changes, topology, task) as trained,
    ):
        results = evaluate_sets(trained, sets or None, signals.asked)
    if isinstance(results, str):
        raise _interrupted("evaluated")
    return {name: result.to_json() for name, result in results.items()}


def predict(
    run: str | Path,
    output: str | Path,
    *,
    data_dir: str | Path | None = None,
    pattern: str | None = None,
    set_name: str | None = None,
    task: type[Task] | None = None,
    force: bool = False,
    on_corrupt: Literal["raise", "mask"] | None = None,
    max_corrupt: float | None = None,
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
    _require_pattern(pattern, "hvdtrain.predict() has the pattern")
    sets = {set_name or VALIDATION: pattern} if pattern is not None or set_name is not None else None
    with (
        StopSignals("hvdtrain", answers=True, then=prediction.THEN) as signals,
        open_trained(Path(run), _changes(data_dir, on_corrupt, max_corrupt), topology, task) as trained,
    ):
        done = predict_set(trained, sets, Path(output), force, signals.asked)
    if isinstance(done, str):
        raise _interrupted("predicted")
    return done


def _changes(data_dir: str | Path | None, on_corrupt: str | None, max_corrupt: float | None) -> dict[str, Any]:
    given = {"dir": data_dir and str(data_dir), "on_corrupt": on_corrupt, "max_corrupt": max_corrupt}
    return {key: value for key, value in given.items() if value is not None}


def _sets(sets: Mapping[str, str | None] | None) -> Mapping[str, str | None]:
    if sets is None or isinstance(sets, Mapping):
        return sets or {}
    raise UsageError(
        f"hvdtrain.evaluate() was given sets={sets!r}.",
        "Each set of records has a name and a pattern.",
        'write for example sets={"test": "test-*.tfrecord"}; None in the place of a pattern is the training\'s set.',
    )


def _require_pattern(pattern: object, what: str) -> None:
    if pattern is not None and (not isinstance(pattern, str) or not pattern):
        raise UsageError(
            f"{what}: {pattern!r}.", "A pattern names files in the data folder.", "write for example 'test-*.tfrecord'."
        )


def _interrupted(what: str) -> HvdtrainError:
    return HvdtrainError(f"Not all records were {what}.", "It was interrupted.", "call it again.")
