"""`hvdtrain bench pipeline`: a model on one device, split naively, and pipelined with micro batches of several sizes.

horovodrun -np 2 python -m hvdtrain bench pipeline --model resnet50 --split-sizes 1,3,5,8,10,12,20,40,60
hvdtrain bench pipeline --parallel.stages 2 --parallel.devices cuda:0,cuda:1 --model resnet50
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.cli.command_parser import CommandParser, number_list, positive
from hvdtrain.cli.tables import print_table
from hvdtrain.config.parser import parse_train_config
from hvdtrain.experiments.split_model import SplitRequest, arm_rows, config_in_stages, measured_arms, write_arms
from hvdtrain.run.job import load_task_class, open_job
from hvdtrain.run.prepare import with_defaults
from hvdtrain.topology import detect_topology

_SIZES = (1, 3, 5, 8, 10, 12, 20, 40, 60)  # Those of PyTorch's tutorial on model parallel ResNet-50


def run(argv: Sequence[str]) -> int:
    """Measure; returns the exit code. Raises UsageError (one worker without devices, or an option that cannot be)."""
    options, train_argv = _parse(argv)
    topology = detect_topology(os.environ)
    config = config_in_stages(parse_train_config(train_argv), topology.size)
    kind = load_task_class(config)
    config = with_defaults(config, kind.defaults, config.parallel.replicas_of(topology.size))
    with open_job(config, kind, topology) as (setup, comm):
        request = SplitRequest(config, kind, options.split_sizes, options.seconds, setup.task.smallest_slice)
        is_root = comm.topology.is_root
        arms = list(measured_arms(request, comm, lambda line: print(line, flush=True) if is_root else None))
        if is_root:
            print_table("records a second", ["way", "median", "1.96 std", "against one device"], arm_rows(arms))
            print(write_arms(arms, config, options.out))
    return 0


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = CommandParser(
        "hvdtrain bench pipeline",
        "Nothing was measured.",
        description="Time steps of a model on one device, split into stages of which one works at a time, and "
        "pipelined with micro batches of several sizes. Start it with a launcher, or give --parallel.devices. Options "
        "of `hvdtrain train` say what is trained.",
    )
    listed = ",".join(map(str, _SIZES))
    parser.add_argument(
        "--split-sizes",
        type=number_list("--split-sizes", int, "1,3,5,8"),
        default=_SIZES,
        metavar="N,...",
        help=f"records of a micro batch (default: {listed})",
    )
    parser.option("--seconds", 10.0, "about how long each way is measured", type=positive("--seconds"))
    parser.option("--out", Path("bench-pipeline"), "folder for the results", type=Path)
    return parser.parse_with_train(argv)
