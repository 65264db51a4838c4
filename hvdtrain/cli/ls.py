"""`hvdtrain ls [FOLDER…]`: a table of runs with their state and result."""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.cli.tables import STATE_STYLES, Column, print_fitting
from hvdtrain.history.overview import Overview, may_look_into, overviews, require_folders
from hvdtrain.run.sinks.terminal import printable
from hvdtrain.units import in_measure, in_time

_DESCRIPTION = """\
List runs with their state and result, the newest first. States: running; finished; stopped (the same command continues
it); failed; lost (it ended without leaving a record, for example by SIGKILL); unknown (its files cannot be read). A
narrow terminal shows fewer columns."""
_DEFAULT: Final = Path("runs")


def run(argv: Sequence[str]) -> int:
    """List the runs that `argv` names; returns 0."""
    parser = CommandParser("hvdtrain ls", "Nothing was listed.", description=_DESCRIPTION)
    parser.add_argument(
        "folders",
        metavar="FOLDER",
        type=Path,
        nargs="*",
        help="run folders, or folders that contain some (default: runs)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with all that is known")
    options = parser.parse(argv)
    folders = options.folders or [_DEFAULT]
    there = [folder for folder in folders if os.path.isdir(folder) and may_look_into(folder)]
    runs = overviews(there)
    if options.json:
        said = [{**asdict(run), "path": str(run.path), "state": run.state.word, "note": run.state.note} for run in runs]
        print(json.dumps(said, indent=2))
    elif runs:
        print_fitting(_columns(runs, _names(runs)))
        _print_problems(runs)
    elif there:
        sys.stderr.write(f"hvdtrain: no runs in {', '.join(map(str, there))}\n")
    require_folders(folders)  # after those that can be listed
    return 0


def _columns(runs: Sequence[Overview], names: Sequence[str]) -> list[Column]:
    now = time.time()
    return [
        Column("run", names),
        Column("state", [run.state.word for run in runs], [STATE_STYLES[run.state.word] for run in runs]),
        Column("framework", [run.framework for run in runs], priority=2),
        Column("task", [run.task for run in runs], priority=1),
        Column("workers", [_number(run.workers) for run in runs], is_number=True, priority=4),
        Column("steps", [_steps(run) for run in runs], is_number=True, priority=7),
        Column("result", [_result(run) for run in runs]),
        Column("samples/s", [_number(run.samples_per_second) for run in runs], is_number=True, priority=5),
        Column("duration", [_time(run.seconds) for run in runs], is_number=True, priority=3),
        Column("age", [_time(run.begun and max(0.0, now - run.begun)) for run in runs], is_number=True, priority=6),
    ]


def _names(runs: Sequence[Overview]) -> list[str]:
    """The names of folders, or paths where several have the same name."""
    names = [run.name for run in runs]
    return [str(run.path) if names.count(run.name) > 1 else run.name for run in runs]


def _steps(run: Overview) -> str:
    total = run.total_steps
    return _number(run.steps) + (f"/{total:,}" if total is not None and total != run.steps else "")


def _result(run: Overview) -> str:
    measure = run.measure
    if measure is None:
        return ""
    best = "" if measure.best is None else f" (best {in_measure(measure.best)})"
    return f"{measure.name} {in_measure(measure.value)}{best}"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _time(seconds: float | None) -> str:
    return "?" if seconds is None else in_time(seconds)


def _print_problems(runs: Sequence[Overview]) -> None:
    for run, name in zip(runs, _names(runs), strict=True):
        notes = run.problems if run.state.word in ("finished", "stopped") else [run.state.note, *run.problems]
        for note in filter(None, notes):
            sys.stdout.write(f"{printable(name)}: {printable(note)}\n")
