"""`hvdtrain checkpoint`: look at a run's checkpoints, check them, remove old ones, write one again."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from data_sharding.storage import is_remote
from hvdtrain.checkpoints.format import remove_checkpoint, state_bytes, write_checkpoint
from hvdtrain.checkpoints.inspection import Entry, entries, entries_behind, examined, store_at, superfluous
from hvdtrain.checkpoints.parts import in_parts
from hvdtrain.checkpoints.resume import checkpoint_at, followed
from hvdtrain.checkpoints.store import CHECKPOINT_NAME
from hvdtrain.cli.command_parser import CommandParser, number, run_subcommand
from hvdtrain.cli.tables import print_table
from hvdtrain.end_signals import ENDING, exiting_at
from hvdtrain.errors import UsageError
from hvdtrain.run.run_folder import RunFolder
from hvdtrain.units import in_time

_CODES = " Exit codes: 0 done; 1 damage found (verify); 2 bad input."
_COLUMNS = ("checkpoint", "step", "samples", "workers", "MB", "age", "")
_ANY = "a run folder, one of its checkpoints, or the URL of one of these"


def run(argv: Sequence[str]) -> int:
    """Run one subcommand; returns its exit code. Raises UsageError (there is no such subcommand)."""
    with exiting_at(ENDING, "nothing was left half done"):
        return run_subcommand("checkpoint", "command", COMMANDS, argv, _CODES)


def _ls(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "hvdtrain checkpoint ls", "Nothing was listed.", description="List a run's checkpoints, the oldest first."
    )
    parser.add_argument("run", metavar="RUN", help=_ANY)
    print_table("", _COLUMNS, [_row(entry) for entry in _entries(parser.parse(argv).run, arrays=False)])
    return 0


def _entries(run: str, arrays: bool) -> Iterable[Entry]:
    return entries_behind(run, arrays=arrays) if is_remote(run) else entries(Path(run))


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


_VERIFY = """\
Read all files of a run's checkpoints, or of one checkpoint, and compare them with their SHA-256. Exit code 1 if one is
damaged. A run resumes from the newest sound one in any case."""


def _verify(argv: Sequence[str]) -> int:
    parser = CommandParser("hvdtrain checkpoint verify", "Nothing was verified.", description=_VERIFY)
    parser.add_argument("run", metavar="RUN", help=_ANY)
    damaged = 0
    for entry, faults in examined(_entries(parser.parse(argv).run, arrays=True)):
        damaged += bool(faults)
        print(f"{entry.path.name}: {'; '.join(faults) or f'sound, {entry.size / 1e6:,.1f} MB'}", flush=True)
    return 1 if damaged else 0


_PRUNE = """\
Remove all checkpoints of a run except the newest ones, the best one and the one from which it would resume. A run that
is still running is refused; it removes its own old checkpoints (--keep-checkpoints)."""


def _prune(argv: Sequence[str]) -> int:
    parser = CommandParser("hvdtrain checkpoint prune", "Nothing was removed.", description=_PRUNE)
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
    if (followed(options.run) / "manifest.json").exists() or CHECKPOINT_NAME.fullmatch(options.run.name):
        raise UsageError(
            f"{options.run} is a checkpoint.",
            "Checkpoints of a run are removed, and this one might be among them.",
            "name the run's folder, and say by --keep how many stay.",
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


_CONVERT = """\
Write a checkpoint again, into FOLDER. What --checkpoint-writers has written in parts becomes one file of each kind, or
what --parts says. All of it is verified. `--resume FOLDER` continues from it. To give weights to other programs, use
`hvdtrain export`."""


def _convert(argv: Sequence[str]) -> int:
    parser = CommandParser("hvdtrain checkpoint convert", "Nothing was written.", description=_CONVERT)
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder, or one of its checkpoints")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="the folder to make")
    parser.option("--parts", 1, "divide the arrays of each kind among this many files", type=number("--parts", 1))
    options = parser.parse(argv)
    checkpoint = checkpoint_at(options.run, "RUN")
    if options.folder.exists():
        raise UsageError(f"{options.folder} is already there.", "Nothing is overwritten.", "name another FOLDER.")
    try:
        write_checkpoint(options.folder, checkpoint, in_parts(options.parts))
    except OSError as error:
        fact = f"{options.folder} cannot be written: {error.strerror or error}."
        raise UsageError(fact, "Nothing was written.", "name a FOLDER on a disk that you may write.") from error
    print(f"{options.folder}: step {checkpoint.position.step:,}, {state_bytes(checkpoint.state) / 1e6:,.1f} MB")
    return 0


COMMANDS = {
    "ls": (_ls, "list a run's checkpoints: step, size, age, which is the latest and the best"),
    "verify": (_verify, "read all files and compare them with their SHA-256"),
    "prune": (_prune, "remove old checkpoints: --keep 3"),
    "convert": (_convert, "write a checkpoint again, in one file of each kind or in several"),
}
