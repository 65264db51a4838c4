"""`hvdtrain checkpoint verify`: whether each checkpoint is what was written."""

from collections.abc import Sequence
from pathlib import Path

from data_sharding.storage import is_remote
from hvdtrain.checkpoints.inspection import entries, entries_behind, problems
from hvdtrain.cli.command_parser import CommandParser

_DESCRIPTION = """\
Read all files of a run's checkpoints, or of one checkpoint, and compare them with their SHA-256. Exit code 1 if one is
damaged. A run resumes from the newest sound one in any case."""


def run(argv: Sequence[str]) -> int:
    """Verify what `argv` names; returns 0 if all of it is sound, else 1."""
    parser = CommandParser("hvdtrain checkpoint verify", "Nothing was verified.", description=_DESCRIPTION)
    parser.add_argument("run", metavar="RUN", help="a run folder, one of its checkpoints, or the URL of one of these")
    run, damaged = parser.parse(argv).run, 0
    for entry in entries_behind(run, arrays=True) if is_remote(run) else entries(Path(run)):
        faults = list(problems(entry))
        damaged += bool(faults)
        print(f"{entry.path.name}: {'; '.join(faults) or f'sound, {entry.size / 1e6:,.1f} MB'}", flush=True)
    return 1 if damaged else 0
