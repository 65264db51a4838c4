"""`hvdtrain bench`: measurements of this machine or cluster."""

from collections.abc import Sequence

from hvdtrain.cli.command_parser import run_subcommand

COMMANDS = {
    "allreduce": ("hvdtrain.cli.bench.allreduce", "how fast workers add up gradients, for growing sizes"),
    "step": ("hvdtrain.cli.bench.step", "how fast training steps are, by Horovod's synthetic benchmark"),
}


def run(argv: Sequence[str]) -> int:
    """Run one measurement; returns its exit code. Raises UsageError (no such measurement, or an option it has not)."""
    return run_subcommand("bench", "measurement", COMMANDS, argv)
