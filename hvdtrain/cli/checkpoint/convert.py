"""`hvdtrain checkpoint convert`: a checkpoint in another folder, in one file of each kind or in several."""

from collections.abc import Sequence
from pathlib import Path

from hvdtrain.checkpoints.format import state_bytes, write_checkpoint
from hvdtrain.checkpoints.parts import in_parts
from hvdtrain.checkpoints.resume import checkpoint_at
from hvdtrain.cli.command_parser import CommandParser, number
from hvdtrain.errors import UsageError

_DESCRIPTION = """\
Write a checkpoint again, into FOLDER. What --checkpoint-writers has written in parts becomes one file of each kind, or
what --parts says. All of it is verified. `--resume FOLDER` continues from it. To give weights to other programs, use
`hvdtrain export`."""


def run(argv: Sequence[str]) -> int:
    """Write what `argv` asks for; returns 0."""
    parser = CommandParser("hvdtrain checkpoint convert", "Nothing was written.", description=_DESCRIPTION)
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
