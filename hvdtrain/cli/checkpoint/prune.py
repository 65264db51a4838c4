"""`hvdtrain checkpoint prune`: remove old checkpoints of a run that is not running."""

from collections.abc import Sequence
from pathlib import Path

from hvdtrain.checkpoints.format import remove_checkpoint
from hvdtrain.checkpoints.inspection import entries, store_at, superfluous
from hvdtrain.cli.command_parser import CommandParser, number
from hvdtrain.errors import UsageError
from hvdtrain.run.run_folder import RunFolder

_DESCRIPTION = """\
Remove all checkpoints of a run except the newest ones, the best one and the one from which it would resume. A run that
is still running is refused; it removes its own old checkpoints (--keep-checkpoints)."""


def run(argv: Sequence[str]) -> int:
    """Remove what `argv` does not keep; returns 0."""
    parser = CommandParser("hvdtrain checkpoint prune", "Nothing was removed.", description=_DESCRIPTION)
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder")
    parser.option("--keep", 1, "keep this many of the newest", type=number("--keep", 1))
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    options = parser.parse(argv)
    if ":/" in str(options.run):
        raise UsageError(
            f"{options.run} is a URL.",
            "A run removes old checkpoints behind its --checkpoint-url itself, as --keep-checkpoints says.",
            "name a run folder on a disk.",
        )
    store = store_at(options.run)
    folder = RunFolder(store.folder.parent, keep_checkpoints=options.keep)
    folder.claim()
    try:
        removed = superfluous(entries(store.folder), options.keep)
        for entry in removed:
            print(f"{'would remove' if options.dry_run else 'removing'} {entry.path}", flush=True)
            if not options.dry_run:
                remove_checkpoint(entry.path)
    finally:
        folder.release()
    freed = sum(entry.size for entry in removed) / 1e6
    print(f"{len(removed)} checkpoints, {freed:,.1f} MB")
    return 0
