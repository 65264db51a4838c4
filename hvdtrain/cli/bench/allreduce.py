"""`hvdtrain bench allreduce`: how fast workers add up gradients.

horovodrun -np 2 python -m hvdtrain bench allreduce [--framework torch] [--sizes 4B,1MiB] [--seconds 5] [--json]
"""

import argparse
import importlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from hvdtrain.cli.command_parser import CommandParser, positive
from hvdtrain.cli.tables import print_table
from hvdtrain.errors import UsageError
from hvdtrain.topology import detect_topology
from hvdtrain.units import in_bytes, in_rate, in_seconds, parse_size

_STALL_SECONDS = 60.0
_MAX_BYTES = 2**31
_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "size": ("bytes", in_bytes),
    "times": ("count", str),
    "median": ("seconds", in_seconds),
    "algorithm": ("algorithm_bandwidth", in_rate),
    "bus": ("bus_bandwidth", in_rate),
}


def run(argv: Sequence[str]) -> int:
    """Measure; returns the exit code. Raises UsageError (there is one worker only, or an option that cannot be)."""
    options = _parse(argv)
    topology = detect_topology(os.environ)
    if not topology.is_distributed:
        raise UsageError(
            "This is the only worker.",
            "An allreduce needs two or more.",
            "start it with a launcher: horovodrun -np 2 python -m hvdtrain bench allreduce.",
        )
    _require_whole_horovod("horovod")
    from hvdtrain.adapters.chosen_framework import bind_device_and_threads
    from hvdtrain.comm.open import measured_allreduce, open_communicator, require_horovod
    from hvdtrain.doctor.allreduce_times import SIZES, measure
    from hvdtrain.models.keras_import import prepare_keras

    prepare_keras()
    require_horovod(options.framework)
    bind_device_and_threads(options.framework, topology)
    _require_whole_horovod(f"horovod.{options.framework}")
    comm = open_communicator(options.framework, topology, _STALL_SECONDS)
    report = measure(
        comm, measured_allreduce(options.framework), options.framework, options.sizes or SIZES, options.seconds
    )
    if topology.is_root:
        print(json.dumps(report), flush=True) if options.json else _print(report)
    comm.close()
    return 0


def _require_whole_horovod(module: str) -> None:
    """Refuse a Horovod that is installed and cannot be imported; a missing one is reported elsewhere."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "horovod":
            return
        raise UsageError(
            f"Horovod is installed, but {module} cannot be imported: {error}.",
            "Nothing was measured.",
            "see `hvdtrain doctor`; `python -m hvdtrain.horovod_wheel install` builds Horovod again.",
        ) from error


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(
        "hvdtrain bench allreduce",
        "Nothing was measured.",
        description="Time allreduces of growing sizes, and compare with the ring model. Start it with a launcher.",
    )
    parser.option("--framework", "torch", "framework to measure with", choices=("torch", "tensorflow"))
    parser.add_argument("--sizes", type=size_list, metavar="4B,64KiB,...", help="sizes (default: 4 B to 64 MiB)")
    parser.option("--seconds", 5, "approximate duration", type=positive("--seconds"))
    parser.add_argument("--json", action="store_true", help="print one JSON object in one line")
    return parser.parse(argv)


def size_list(text: str) -> tuple[int, ...]:
    """Bytes of "4B,64KiB", for argparse."""
    try:
        sizes = tuple(parse_size(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    wrong = next((size for size in sizes if size % 4 or not 4 <= size <= _MAX_BYTES), None)
    if wrong is not None:
        raise argparse.ArgumentTypeError(f"{wrong} bytes are not float32 values: multiples of 4, up to 2 GiB")
    return sizes


def _print(report: Any) -> None:
    rows = [[shown(point[key]) for key, shown in _COLUMNS.values()] for point in report["sizes"]]
    hosts = len(set(report["hosts"]))
    title = f"allreduce, {report['workers']} workers on {hosts} host{'s' * (hosts > 1)}, {report['transport']}"
    print_table(title, list(_COLUMNS), rows)
    model = report["model"]
    if model is not None and model["bandwidth"] is not None:
        print(
            f"\nring model: {in_seconds(model['latency'])} a step, {in_rate(model['bandwidth'])} a link; "
            f"measured times are within {model['deviation']:.0%} of it"
        )
