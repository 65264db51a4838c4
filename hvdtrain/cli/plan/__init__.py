"""`hvdtrain plan`: what each way to divide a training would take, from measurements of the model and its links.

horovodrun -np 2 python -m hvdtrain plan --task cifar10 --model resnet18 [--verify] [options of train]
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from hvdtrain.cli.command_parser import CommandParser, checked, number, number_list, positive
from hvdtrain.cli.plan.plan_text import print_plan
from hvdtrain.comm.messages import agree, broadcast_json
from hvdtrain.config.parser import parse_train_config
from hvdtrain.errors import UsageError
from hvdtrain.launch.supervisor.restarts import option_value
from hvdtrain.plan.candidates import COUNTS
from hvdtrain.plan.cluster_simulation import Disturbances
from hvdtrain.plan.cost_model import LinkModel
from hvdtrain.plan.make import PlanRequest, make_plan, timed_parallel
from hvdtrain.plan.measured_workload import undivided
from hvdtrain.plan.plan_files import require_folder, write_plan
from hvdtrain.run.job import load_task_class, open_job
from hvdtrain.run.sinks.terminal import stated_columns, table_columns
from hvdtrain.topology import detect_topology
from hvdtrain.units import parse_size

_LINK: Final = re.compile(r"(\d+(?:\.\d+)?) ?([MG])bit(?:/s)?(?: ?, ?(\d+(?:\.\d+)?) ?us)?", re.IGNORECASE)
_LATENCY_US: Final = 50.0
_RATIOS: Final = (8.0, 2.0, 1.0)


def run(argv: Sequence[str]) -> int:
    """Plan; returns the exit code: 2 where no way fits into the memory."""
    options, train_argv = parse(argv)
    config = parse_train_config(train_argv)
    topology = detect_topology(os.environ)
    kind = load_task_class(config)
    parallel = timed_parallel(kind.framework, topology.size)
    with open_job(undivided(config), kind, topology, parallel) as (setup, comm):
        given = option_value(train_argv, "config")
        work = partial(require_folder, options.out, given) if comm.topology.is_root else lambda: None
        agree(comm, work, "hvdtrain.plan.folder")
        plan = make_plan(setup, config, kind, comm, request_of(options))
        if comm.topology.is_root:
            width = table_columns(sys.stdout, comm.topology.launcher, stated_columns())
            print_plan(plan, comm.topology.size, options.all_tables, width)
            print("\n".join(write_plan(plan, config, kind, comm.topology.size, options.out)), flush=True)
        return 0 if broadcast_json(comm, plan.fits, "hvdtrain.plan.fits") else UsageError.exit_code


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """This command's own options, and what is train's."""
    parser = CommandParser(
        "hvdtrain plan",
        "Nothing was measured.",
        description="Measure the model and the links of this job's workers, predict the time of a step for each way to "
        "divide the training, on any number of workers, and recommend one. Options of `hvdtrain train` say what is "
        "trained.",
    )
    listed = ",".join(map(str, COUNTS[:5]))
    counts = number_list("--workers", int, "1,2,4")
    text = f"numbers of workers to predict (default: {listed},…,{COUNTS[-1]})"
    parser.add_argument("--workers", type=counts, default=COUNTS, metavar="N,...", help=text)
    parser.option("--seconds", 10.0, "about how long each measurement takes", type=positive("--seconds"))
    parser.add_argument("--verify", action="store_true", help="run the ways on this job's workers, and compare")
    parser.add_argument("--link", type=_link, metavar="1Gbit,50us", help="links between workers (default: as measured)")
    parser.add_argument("--memory", type=_size, metavar="16GiB", help="memory of a worker (default: what one has here)")
    per_host = number("--workers-per-host", 1)
    parser.add_argument("--workers-per-host", type=per_host, metavar="N", help="workers on a host (default: as here)")
    ratios = number_list("--ratios", float, "1,2,8")
    text = "workers for each parameter server, of which several are compared (default: 1,2,8)"
    parser.add_argument("--ratios", type=ratios, default=_RATIOS, metavar="W,...", help=text)
    jitter = "how much step times vary in the simulation: the standard deviation of their logarithm"
    spread = checked("--jitter", float, lambda n: 0 <= n <= 2, "It must be from 0 to 2.", "try --jitter 0.05, for 5 %.")
    parser.option("--jitter", 0.05, jitter, type=spread)
    parser.option("--mtbf", 50_000.0, "mean hours between two failures of a worker", type=positive("--mtbf"))
    parser.option("--restart", 60.0, "seconds until training goes on after a failure", type=positive("--restart"))
    parser.option("--save", 1.0, "seconds that training waits for a checkpoint", type=positive("--save"))
    parser.option("--out", Path("plan"), "folder for the results", type=_folder)
    parser.add_argument(
        "--all-tables",
        action="store_true",
        help="print the ways for every number of workers, and simulated jobs (default: the ways for this job's number)",
    )
    return parser.parse_with_train(argv)


def request_of(options: argparse.Namespace) -> PlanRequest:
    """What the options ask for."""
    return PlanRequest(
        counts=options.workers,
        seconds=options.seconds,
        verify=options.verify,
        link=options.link,
        memory=options.memory,
        workers_per_host=options.workers_per_host,
        ratios=options.ratios,
        disturbances=Disturbances(options.jitter, options.mtbf, options.restart, options.save),
    )


def _folder(text: str) -> Path:
    if not text.strip():
        raise UsageError("--out is empty.", "It names no folder.", "write --out . for this folder.")
    return Path(text)


def _size(text: str) -> int:
    try:
        if (size := parse_size(text)) > 0:
            return size
        raise ValueError(f"{text!r} is not an amount of memory")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _link(text: str) -> LinkModel:
    match = _LINK.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(
            f"--link is {text}.", "It is a rate and a latency.", "write --link 10Gbit,20us, or --link 200Mbit."
        )
    bits = float(match[1]) * {"M": 1e6, "G": 1e9}[match[2].upper()]
    return LinkModel(float(match[3] or _LATENCY_US) * 1e-6, bits / 8)
