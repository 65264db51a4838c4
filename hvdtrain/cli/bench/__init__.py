"""`hvdtrain bench`: measurements of this machine or cluster."""

from collections.abc import Sequence

from hvdtrain.cli.command_parser import run_subcommand

COMMANDS = {
    "allreduce": ("hvdtrain.cli.bench.allreduce", "how fast workers add up gradients, for growing sizes"),
    "parameter-server": ("hvdtrain.cli.bench.parameter_server", "averages by central servers, beside the ring"),
    "pipeline": (
        "hvdtrain.cli.bench.pipeline",
        "a model on one device, split, and pipelined, for growing micro batches",
    ),
    "scaling": ("hvdtrain.cli.bench.scaling", "steps on several numbers of workers, beside the ring model"),
    "step": ("hvdtrain.cli.bench.step", "how fast training steps are, by Horovod's synthetic benchmark"),
}


def run(argv: Sequence[str]) -> int:
    """Run one measurement; returns its exit code. Raises UsageError (no such measurement, or an option it has not)."""
    return run_subcommand("bench", "measurement", COMMANDS, argv)
