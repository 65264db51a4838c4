"""`hvdtrain predict`: what a run's model predicts for each record, by one or many workers, as one file."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.cli.failure import who
from hvdtrain.cli.trained_options import add_options, data_changes
from hvdtrain.errors import RESUMABLE
from hvdtrain.exit_watch import completed
from hvdtrain.run.prediction import THEN, predict_set
from hvdtrain.run.prediction_files import format_of
from hvdtrain.run.trained_model import open_trained
from hvdtrain.set_names import chosen_sets
from hvdtrain.stop_requests import StopSignals
from hvdtrain.topology import detect_topology

_DESCRIPTION = """\
Write what the model of a run predicts for each record, each exactly once, in the order of the records. Examples:

  hvdtrain predict RUN --output out.jsonl                      for the records that training has validated on
  hvdtrain predict RUN --data.dir DIR --set new='new-*.tfrecord' --output out.parquet
  hvdtrain launch local -n 4 -- predict RUN --output out.npz   by four workers, with the same file

The columns are id, file, offset, and what the task's predict() names: label and probability for a classification.
A command that was stopped goes on where it was, with any number of workers, when it is started again.
"""


def run(argv: Sequence[str]) -> int:
    """Predict as `argv` says; returns the exit code."""
    options = _parse(argv)
    return completed(detect_topology(os.environ).rank, who, lambda: _predict(options))


def _predict(options: argparse.Namespace) -> int:
    sets = chosen_sets(options.set, "--set") or None
    format_of(options.output)
    topology = detect_topology(os.environ)
    with (
        StopSignals(who(), topology.is_root, ends_process=topology.is_distributed, then=THEN) as signals,
        open_trained(options.run, data_changes(options), topology) as trained,
    ):
        done = predict_set(trained, sets, options.output, options.force, signals.asked)
        root, step = trained.comm.topology.is_root, trained.step
    if root and not isinstance(done, str):
        left_out = f", {done.left_out} damaged ones left out" if done.left_out else ""
        print(
            f"hvdtrain: predictions of step {step} for {done.records} records{left_out}: {options.output}", flush=True
        )
    if root and isinstance(done, str):
        print(
            f"hvdtrain: stopped by {done}; the parts that are complete are kept in {options.output}.parts. Start the "
            "same command again, which goes on from there.",
            flush=True,
        )
    return RESUMABLE if isinstance(done, str) else 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser("hvdtrain predict", "Nothing was predicted.", description=_DESCRIPTION)
    add_options(
        parser, "the records: a name of yours and their files in the data folder, or one of the training's sets"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="file to write: .npz, .jsonl or .parquet"
    )
    parser.add_argument("--force", action="store_true", help="replace the file, and parts of other predictions")
    return parser.parse(argv)
