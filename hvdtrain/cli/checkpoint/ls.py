"""`hvdtrain checkpoint ls`: a table of a run's checkpoints."""

from collections.abc import Sequence
from pathlib import Path

from data_sharding.storage import is_remote
from hvdtrain.checkpoints.inspection import Entry, entries, entries_behind
from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.cli.tables import print_table
from hvdtrain.units import in_time

_COLUMNS = ("checkpoint", "step", "samples", "workers", "MB", "age", "")


def run(argv: Sequence[str]) -> int:
    """List the checkpoints of the run that `argv` names; returns 0."""
    parser = CommandParser(
        "hvdtrain checkpoint ls", "Nothing was listed.", description="List a run's checkpoints, the oldest first."
    )
    parser.add_argument("run", metavar="RUN", help="a run folder, one of its checkpoints, or the URL of one of these")
    run = parser.parse(argv).run
    checkpoints = entries_behind(run, arrays=False) if is_remote(run) else entries(Path(run))
    print_table("", _COLUMNS, [_row(entry) for entry in checkpoints])
    return 0


def _row(entry: Entry) -> list[str]:
    known = entry.step is not None
    return [
        entry.path.name,
        f"{entry.step:,}" if known else "?",
        f"{entry.samples:,}" if known else "?",
        f"{entry.world_size}" if entry.world_size is not None else "?",
        f"{entry.size / 1e6:,.1f}",
        "?" if entry.age is None else in_time(entry.age),
        entry.problem or ", ".join(entry.names),
    ]
