"""`hvdtrain bench scaling`: how much faster several workers are than one, beside what the ring model predicts.

hvdtrain bench scaling --sizes 1,2,4 --task cifar10 --model resnet50 --data.dir DIR
hvdtrain bench scaling --sizes 1,2,4 --starter 'srun -n {np}' --model resnet50 --task synthetic    (Slurm)
"""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.cli.command_parser import CommandParser, number, number_list
from hvdtrain.cli.tables import print_table
from hvdtrain.config.parser import parse_train_config
from hvdtrain.errors import UsageError
from hvdtrain.experiments.worker_scaling import ScalingRequest, measured_points, scaling_rows, write_scaling
from hvdtrain.tasks.task_registry import load_task

_STARTER = "hvdtrain launch local -np {np} --"


def run(argv: Sequence[str]) -> int:
    """Measure; returns the exit code. Raises UsageError (an option that cannot be), HvdtrainError (a run failed)."""
    options, train_argv = _parse(argv)
    config = parse_train_config(train_argv)
    batch = config.global_batch_size or load_task(config.task, config.framework).defaults.global_batch_size
    if batch < max(options.sizes):
        raise UsageError(
            f"The global batch holds {batch} records for {max(options.sizes)} workers.",
            "Some workers would have nothing to do in any step.",
            f"give --global-batch-size {max(options.sizes)} or more, or smaller --sizes.",
        )
    request = ScalingRequest(
        sorted({1, *options.sizes}), batch, options.repeats, options.iters, shlex.split(options.starter), train_argv
    )
    points = measured_points(request, lambda line: print(line, flush=True))
    heads = ["workers", "records/s", "from, to", "efficiency", "ring model"]
    for mode in dict.fromkeys(point.mode for point in points):
        print_table(mode, heads, scaling_rows([point for point in points if point.mode == mode]))
    print(write_scaling(points, request, options.out))
    return 0


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = CommandParser(
        "hvdtrain bench scaling",
        "Nothing was measured.",
        description="Time steps on several numbers of workers, with a fixed global batch and with a fixed batch of "
        "each worker, and compare the efficiency with the ring model. It starts the workers itself. Options of "
        "`hvdtrain train` say what is trained.",
    )
    sizes = number_list("--sizes", int, "1,2,4")
    parser.add_argument("--sizes", type=sizes, default=(1, 2, 4), metavar="N,...", help="workers (default: 1,2,4)")
    parser.option("--starter", _STARTER, "what starts {np} workers, e.g. 'srun -n {np}'")
    parser.option("--repeats", 3, "runs of each kind", type=number("--repeats", 1))
    parser.option("--iters", 5, "timed iterations of a run, of 10 batches each", type=number("--iters", 1))
    parser.option("--out", Path("bench-scaling"), "folder for the results", type=Path)
    options, rest = parser.parse_with_train(argv)
    if "{np}" not in options.starter:
        raise UsageError(
            f"--starter is {options.starter!r}.", "It does not say how many workers there are.", "write 'srun -n {np}'."
        )
    return options, rest
