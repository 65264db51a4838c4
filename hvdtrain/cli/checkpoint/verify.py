"""`hvdtrain checkpoint verify`: whether each checkpoint is what was written."""

from collections.abc import Sequence
from pathlib import Path

from hvdtrain.checkpoints.inspection import entries, problems
from hvdtrain.cli.command_parser import CommandParser

_DESCRIPTION = """\
Read all files of a run's checkpoints, or of one checkpoint, and compare them with their SHA-256. Exit code 1 if one is
damaged. A run resumes from the newest sound one in any case."""


def run(argv: Sequence[str]) -> int:
    """Verify what `argv` names; returns 0 if all of it is sound, else 1."""
    parser = CommandParser("hvdtrain checkpoint verify", "Nothing was verified.", description=_DESCRIPTION)
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder, or one of its checkpoints")
    damaged = 0
    for entry in entries(parser.parse(argv).run):
        found = list(problems(entry))
        damaged += bool(found)
        print(f"{entry.path.name}: {'; '.join(found) or f'sound, {entry.size / 1e6:,.1f} MB'}", flush=True)
    return 1 if damaged else 0
