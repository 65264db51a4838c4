"""What one process predicts, is refused, and leaves when it is stopped: predictions_of_one.py RUN NAME=PATTERN."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hvdtrain.cli.evaluate_call import predict
from hvdtrain.errors import UsageError
from hvdtrain.run.evaluation import evaluate_sets
from hvdtrain.run.evaluation_files import require_free
from hvdtrain.run.prediction import predict_set
from hvdtrain.run.trained_model import TrainedModel, open_trained
from hvdtrain.set_names import named_patterns
from hvdtrain.topology import Topology


def write_formats(trained: TrainedModel, patterns: Mapping[str, str]) -> None:
    for suffix in (".npz", ".jsonl", ".parquet"):
        output = Path(f"whole{suffix}")
        assert predict_set(trained, patterns, output, False, lambda: None) == (359, 0)
    before = output.stat().st_mtime_ns
    with pytest.raises(UsageError, match=r"whole\.parquet is there already"):
        predict_set(trained, patterns, output, False, lambda: None)
    assert output.stat().st_mtime_ns == before
    predict_set(trained, patterns, output, True, lambda: None)
    assert output.stat().st_mtime_ns > before


def stop_after_a_part(trained: TrainedModel, patterns: Mapping[str, str]) -> None:
    part = Path("on.npz.parts/part-000000.npz")
    assert predict_set(trained, patterns, Path("on.npz"), False, lambda: "stop" if part.exists() else None) == "stop"
    few = {"few": patterns["whole"].replace("-*", "-00000*")}
    with pytest.raises(UsageError, match="holds parts of other predictions"):
        predict_set(trained, few, Path("on.npz"), False, lambda: None)


def no_sets_that_make_no_table(trained: TrainedModel) -> None:
    with pytest.raises(UsageError, match="There are 2 sets of records: few, whole"):
        predict_set(trained, None, Path("never.npz"), False, lambda: None)
    with pytest.raises(UsageError, match=r"no validation set test\. It has few, whole\."):
        predict_set(trained, {"test": None}, Path("never.npz"), False, lambda: None)
    Path("empty-0.tfrecord").touch()
    with pytest.raises(UsageError, match=r"empty-0\.tfrecord is empty"):
        predict_set(trained, {"empty": str(Path("empty-*").absolute())}, Path("never.npz"), False, lambda: None)


def records_that_have_changed(trained: TrainedModel, patterns: Mapping[str, str]) -> None:
    """A set of the training is chosen by its name; other records under its name are no secret."""
    assert predict_set(trained, {"few": None}, Path("few.npz"), False, lambda: None) == (90, 0)
    seen = {"few": patterns["whole"], "whole": None, "new": patterns["whole"]}
    results = evaluate_sets(trained, seen, lambda: None)
    assert results is not None
    assert {name: found.as_in_training for name, found in results.items()} == {"few": False, "whole": True, "new": None}
    warned: list[logging.LogRecord] = []
    logger = logging.getLogger("hvdtrain.run.trained_model")
    logger.addFilter(lambda record: not warned.append(record))
    moved = replace(trained, validated_on={**trained.validated_on, "whole": "0" * 64})
    moved.open_sets({"few": None, "whole": None})
    (warning,) = warned
    assert warning.getMessage().startswith("the 359 records of whole are not those that the training has validated on")


def no_values_that_are_no_rows(kind: type[Any], run: Path, patterns: Mapping[str, str]) -> None:
    """What a task predicts by itself, in a framework's own graph too."""
    wrong = {
        "'x', an object of type list": lambda *_: {"x": ["cat"]},
        "names no values": lambda *_: None,
        r"'x' of shape \(1, ": lambda _self, _model, batch: {"x": batch["image"][:1]},
    }
    for said, own in wrong.items():
        task = type("Wrong", (kind,), {"predict": own})
        with pytest.raises(UsageError, match=said):
            predict(run, "never.npz", pattern=patterns["whole"], task=task, force=True)


if __name__ == "__main__":
    run, patterns = Path(sys.argv[1]), named_patterns(sys.argv[2:], "--set")
    with open_trained(run, {}, Topology.single()) as trained:
        write_formats(trained, patterns)
        stop_after_a_part(trained, patterns)
        records_that_have_changed(trained, patterns)
        no_sets_that_make_no_table(trained)
        kind = type(trained.task)
    no_values_that_are_no_rows(kind, run, patterns)
    assert not Path("never.npz").exists()
    there = Path("there.json")
    there.touch()
    with pytest.raises(UsageError, match=r"there\.json is there already"):
        require_free(there, False)
