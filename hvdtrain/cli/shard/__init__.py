"""`hvdtrain shard`: look at record files, plan their split, prove what a run has used, convert them."""

from collections.abc import Sequence

from data_sharding.errors import ShardingError
from hvdtrain.cli.command_parser import run_subcommand
from hvdtrain.end_signals import ENDING, exiting_at
from hvdtrain.errors import UsageError

COMMANDS = {
    "index": ("hvdtrain.cli.shard.index", "find all records of a data set and describe them"),
    "plan": ("hvdtrain.cli.shard.plan", "show the steps of an epoch, and what each rank reads: --size 4"),
    "verify": ("hvdtrain.cli.shard.verify", "prove from a run folder that each epoch used every record once"),
    "convert": ("hvdtrain.cli.shard.convert", "rewrite records in another format or number of files"),
    "bench": ("hvdtrain.cli.shard.bench", "measure how fast records can be read here"),
    "pipe-plan": ("hvdtrain.cli.shard.pipe_plan", "distribute files over the pipes of local workers"),
    "pipe-sim": ("hvdtrain.cli.shard.pipe_sim", "write files into pipes, as SageMaker's Pipe mode does"),
}
_CODES = " Exit codes: 0 done; 2 bad input;\n1 damage found (index), coverage not exact (verify)."


def run(argv: Sequence[str]) -> int:
    """Run one subcommand; returns its exit code. Raises UsageError (there is no such subcommand)."""
    try:
        with exiting_at(ENDING, "nothing was left half done"):
            return run_subcommand("shard", "command", COMMANDS, argv, _CODES)
    except ShardingError as error:  # whatever is wrong with the data is input here: exit code 2
        raise UsageError(error.fact, error.conflict, error.hint) from error
