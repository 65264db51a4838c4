"""`hvdtrain checkpoint ls`: a table of a run's checkpoints."""

from collections.abc import Sequence
from pathlib import Path

from hvdtrain.checkpoints.inspection import Entry, entries, entries_behind
from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.cli.tables import print_table

_COLUMNS = ("checkpoint", "step", "samples", "workers", "MB", "age", "")
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def run(argv: Sequence[str]) -> int:
    """List the checkpoints of the run that `argv` names; returns 0."""
    parser = CommandParser(
        "hvdtrain checkpoint ls", "Nothing was listed.", description="List a run's checkpoints, the oldest first."
    )
    parser.add_argument("run", metavar="RUN", help="a run folder, one of its checkpoints, or the URL of one of these")
    run = parser.parse(argv).run
    found = entries_behind(run, arrays=False) if "://" in run else entries(Path(run))
    print_table("", _COLUMNS, [_row(entry) for entry in found])
    return 0


def _row(entry: Entry) -> list[str]:
    known = entry.step is not None
    return [
        entry.path.name,
        f"{entry.step:,}" if known else "?",
        f"{entry.samples:,}" if known else "?",
        f"{entry.world_size}" if entry.world_size is not None else "?",
        f"{entry.size / 1e6:,.1f}",
        _age(entry.age),
        entry.problem or ", ".join(entry.names),
    ]


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= 2 * size), _UNITS[-1])
    return f"{seconds / size:.0f} {unit}"
