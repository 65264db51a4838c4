"""`hvdtrain bench parameter-server`: averages by central servers beside Horovod's ring, on the same machines and links.

mpirun -np 4 python -m hvdtrain bench parameter-server --servers 1,2
hvdtrain bench parameter-server --servers 1,2 --emulate 50,200,1000 --machines 4    (links of so many Mbit/s; root)
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.cli.bench.allreduce import size_list
from hvdtrain.cli.command_parser import CommandParser, number, number_list
from hvdtrain.cli.tables import print_table
from hvdtrain.errors import UsageError
from hvdtrain.experiments.update_averages import (
    Average,
    AveragesRequest,
    average_rows,
    averages_over,
    measured_averages,
    write_averages,
)
from hvdtrain.topology import Topology, detect_topology

_SIZES = (2**14, 2**18, 2**20, 2**22, 2**24)


def run(argv: Sequence[str]) -> int:
    """Measure; returns the exit code."""
    options = _parse(argv)
    topology = detect_topology(os.environ)
    request = AveragesRequest(options.servers, options.sizes, options.repeats)
    if options.emulate:
        return _emulate(options, request, topology)
    request.require_workers(topology.size, "start more: mpirun -np 4 python -m hvdtrain bench …")
    averages = measured_averages(request, topology)
    if topology.is_root:
        _print(f"an average on {topology.size} machines", averages, topology.size)
        print(write_averages({"": averages}, topology.size, options.out))
    return 0


def _emulate(options: argparse.Namespace, request: AveragesRequest, topology: Topology) -> int:
    if topology.is_distributed:
        raise UsageError(
            f"--emulate was given to {topology.size} workers of {topology.launcher}.",
            "It makes its own machines and starts its own workers on them.",
            "start it by itself: hvdtrain bench parameter-server --emulate …",
        )
    request.require_workers(options.machines, "give more --machines.")
    links = {}
    for mbit in options.emulate:
        averages = links[f"{mbit} Mbit/s"] = averages_over(mbit, options.machines, request)
        _print(f"an average on {options.machines} machines with links of {mbit} Mbit/s", averages, options.machines)
    print(write_averages(links, options.machines, options.out))
    return 0


def _print(title: str, averages: Sequence[Average], machines: int) -> None:
    heads = ["way", "bytes", "median", "1.96 std", "formula", "of the ring"]
    print_table(title, heads, average_rows(averages, machines))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(
        "hvdtrain bench parameter-server",
        "Nothing was measured.",
        description="Time averages of growing sizes by central servers over mpi4py, and by Horovod's ring on the same "
        "machines, beside the formulas. Start it with mpirun, or give --emulate.",
    )
    servers = number_list("--servers", int, "1,2")
    text = "how many of the machines serve (default: 1)"
    parser.add_argument("--servers", type=servers, default=(1,), metavar="K,...", help=text)
    text = "bytes of each worker (default: 16 KiB to 16 MiB)"
    parser.add_argument("--sizes", type=size_list, default=_SIZES, metavar="4KiB,...", help=text)
    parser.option("--repeats", 20, "timed averages of each kind", type=number("--repeats", 2))
    parser.add_argument(
        "--emulate",
        type=number_list("--emulate", int, "50,200,1000"),
        default=(),
        metavar="MBIT,...",
        help="measure on emulated machines, whose links have so many Mbit/s; Linux, root",
    )
    parser.option("--machines", 4, "how many are emulated", type=number("--machines", 2))
    parser.option("--out", Path("bench-parameter-server"), "folder for the results", type=Path)
    return parser.parse(argv)
