"""`hvdtrain evaluate`: a run's model measured on records, by one or many workers."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.cli.failure import who
from hvdtrain.cli.trained_options import add_options, data_changes
from hvdtrain.comm.messages import agree
from hvdtrain.errors import RESUMABLE
from hvdtrain.exit_watch import completed
from hvdtrain.run.evaluation import THEN, SetResult, evaluate_sets
from hvdtrain.run.evaluation_files import default_place, require_free, written
from hvdtrain.run.sinks.progress import format_values
from hvdtrain.run.trained_model import open_trained
from hvdtrain.set_names import chosen_sets
from hvdtrain.stop_requests import StopSignals
from hvdtrain.topology import detect_topology

_DESCRIPTION = """\
Measure the model of a run on all records of one or several sets, each record exactly once. Examples:

  hvdtrain evaluate RUN                                        on the records that training has validated on
  hvdtrain evaluate RUN/checkpoints/best --data.dir DIR        a certain checkpoint, on data that were moved
  hvdtrain evaluate RUN --set test='test-*.tfrecord' --set old='old/*.tfrecord'
  hvdtrain launch local -n 4 -- evaluate RUN                   by four workers, with the same result

The result is written as JSON and as an HTML page, into RUN/evaluations/ if --output does not say otherwise.
"""


def run(argv: Sequence[str]) -> int:
    """Evaluate as `argv` says; returns the exit code."""
    options = _parse(argv)
    return completed(detect_topology(os.environ).rank, who, lambda: _evaluate(options))


def _evaluate(options: argparse.Namespace) -> int:
    sets = chosen_sets(options.set, "--set") or None
    topology = detect_topology(os.environ)
    with (
        StopSignals(who(), topology.is_root, ends_process=topology.is_distributed, then=THEN) as signals,
        open_trained(options.run, data_changes(options), topology) as trained,
    ):
        place = options.output or default_place(options.run, trained.step)
        root = trained.comm.topology.is_root
        agree(
            trained.comm,
            lambda: require_free(place, options.force) if root else None,
            "hvdtrain.evaluate.place",
        )
        results = evaluate_sets(trained, sets, signals.asked)
        if isinstance(results, str):
            if root:
                print(f"hvdtrain: stopped by {results}; nothing was written.", flush=True)
            return RESUMABLE
        agree(trained.comm, lambda: written(place, trained, results) if root else None, "hvdtrain.evaluate.write")
    if root:
        _tell(results, place, trained.step)
    return 0


def _tell(results: dict[str, SetResult], place: Path, step: int) -> None:
    for result in results.values():
        left_out = f", {result.left_out} damaged ones left out" if result.left_out else ""
        print(f"{result.name}: {result.records} records{left_out}: {format_values(result.values)}")
    print(f"hvdtrain: the model of step {step} was evaluated; results: {place}", flush=True)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser("hvdtrain evaluate", "Nothing was evaluated.", description=_DESCRIPTION)
    add_options(
        parser,
        "records to measure, by a name of yours and their files in the data folder, or one of the training's sets by "
        "its name; may be repeated",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE.json", help="file to write; FILE.html is written beside it"
    )
    parser.add_argument("--force", action="store_true", help="replace the files if they are there")
    return parser.parse(argv)
