"""`hvdtrain ls [FOLDER…]`: a table of runs with their state and result."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.cli.run_styles import STATE_STYLES
from hvdtrain.cli.signs import printable
from hvdtrain.cli.tables import Column, print_fitting
from hvdtrain.history.overview import Overview, overviews, require_folders
from hvdtrain.units import in_time

_DESCRIPTION = """\
List runs with their state and result, the newest first. States: running; finished; stopped (the same command continues
it); failed; lost (it has ended without telling so, for example by SIGKILL); unknown (its files cannot be read). A
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
    there = [folder for folder in folders if folder.is_dir()]
    found = overviews(there)
    if options.json:
        print(json.dumps([_as_json(one) for one in found], indent=2))
    elif found:
        print_fitting(_columns(found, _names(found)))
        _print_problems(found)
    elif there:
        sys.stderr.write(f"hvdtrain: no runs in {', '.join(map(str, there))}\n")
    require_folders(folders)  # after those that can be listed
    return 0


def _columns(found: Sequence[Overview], names: Sequence[str]) -> list[Column]:
    now = time.time()
    return [
        Column("run", names),
        Column("state", [one.state.word for one in found], [STATE_STYLES[one.state.word] for one in found]),
        Column("framework", [one.framework for one in found], priority=2),
        Column("task", [one.task for one in found], priority=1),
        Column("workers", [_number(one.workers) for one in found], is_number=True, priority=4),
        Column("steps", [_steps(one) for one in found], is_number=True, priority=7),
        Column("result", [_result(one) for one in found]),
        Column("samples/s", [_number(one.samples_per_second) for one in found], is_number=True, priority=5),
        Column("duration", [_time(one.seconds) for one in found], is_number=True, priority=3),
        Column("age", [_time(one.begun and max(0.0, now - one.begun)) for one in found], is_number=True, priority=6),
    ]


def _names(found: Sequence[Overview]) -> list[str]:
    """The names of folders, or paths where several have the same name."""
    names = [one.name for one in found]
    return [str(one.path) if names.count(one.name) > 1 else one.name for one in found]


def _steps(one: Overview) -> str:
    total = one.total_steps
    return _number(one.steps) + (f"/{total:,}" if total is not None and total != one.steps else "")


def _result(one: Overview) -> str:
    measure = one.measure
    if measure is None:
        return ""
    best = "" if measure.best is None else f" (best {measure.best:.4f})"
    return f"{measure.name} {measure.value:.4f}{best}"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _time(seconds: float | None) -> str:
    return "?" if seconds is None else in_time(seconds)


def _print_problems(found: Sequence[Overview]) -> None:
    for one, name in zip(found, _names(found), strict=True):
        notes = one.problems if one.state.word in ("finished", "stopped") else [one.state.note, *one.problems]
        for note in filter(None, notes):
            sys.stdout.write(f"{printable(name)}: {printable(note)}\n")


def _as_json(one: Overview) -> dict[str, Any]:
    values = asdict(one)
    return {**values, "path": str(one.path), "state": one.state.word, "note": one.state.note}
