"""`hvdtrain checkpoint`: look at a run's checkpoints, check them, remove old ones, write one again."""

from collections.abc import Sequence

from hvdtrain.cli.command_parser import run_subcommand
from hvdtrain.end_signals import ENDING, exiting_at

COMMANDS = {
    "ls": ("hvdtrain.cli.checkpoint.ls", "list a run's checkpoints: step, size, age, which is the latest and the best"),
    "verify": ("hvdtrain.cli.checkpoint.verify", "read all files and compare them with their SHA-256"),
    "prune": ("hvdtrain.cli.checkpoint.prune", "remove old checkpoints: --keep 3"),
    "convert": ("hvdtrain.cli.checkpoint.convert", "write a checkpoint again, in one file of each kind or in several"),
}
_CODES = " Exit codes: 0 done; 1 damage found (verify); 2 bad input."


def run(argv: Sequence[str]) -> int:
    """Run one subcommand; returns its exit code. Raises UsageError (there is no such subcommand)."""
    with exiting_at(ENDING, "nothing was left half done"):
        return run_subcommand("checkpoint", "command", COMMANDS, argv, _CODES)
