"""The options of `hvdtrain plan`."""

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hvdtrain.cli.command_parser import CommandParser, number, number_list, positive
from hvdtrain.errors import UsageError
from hvdtrain.plan.candidates import COUNTS
from hvdtrain.plan.cluster_simulation import Disturbances
from hvdtrain.plan.cost_model import LinkModel
from hvdtrain.plan.make import PlanRequest
from hvdtrain.units import parse_size

_LINK: Final = re.compile(r"(\d+(?:\.\d+)?) ?([MG])bit(?:/s)?(?: ?, ?(\d+(?:\.\d+)?) ?us)?", re.IGNORECASE)
_LATENCY_US: Final = 50.0
_RATIOS: Final = (8.0, 2.0, 1.0)


@dataclass(frozen=True)
class PlanOptions:
    """What is asked for, the folder for the results, and whether all that they contain is printed, too."""

    request: PlanRequest
    out: Path
    all_tables: bool


def parse(argv: Sequence[str]) -> tuple[PlanOptions, list[str]]:
    """This command's own options, and what is train's."""
    parser = CommandParser(
        "hvdtrain plan",
        "Nothing was measured.",
        description="Measure the model and the links of this job's workers, predict what each way to divide the "
        "training takes on any number of workers, and recommend one. Options of `hvdtrain train` say what is trained.",
    )
    listed = ",".join(map(str, COUNTS[:5]))
    parser.add_argument(
        "--workers", type=_counts, default=COUNTS, metavar="N,...", help=f"(default: {listed},…,{COUNTS[-1]})"
    )
    parser.option("--seconds", 10.0, "about how long each measurement takes", type=positive("--seconds"))
    parser.add_argument("--verify", action="store_true", help="run the ways on this job's workers, and compare")
    parser.add_argument("--link", type=_link, metavar="1Gbit,50us", help="between workers (default: as measured)")
    parser.add_argument("--memory", type=_size, metavar="16GiB", help="of a worker (default: what one has here)")
    own = number("--workers-per-host", 1)
    parser.add_argument("--workers-per-host", type=own, metavar="N", help="(default: as here)")
    parser.add_argument(
        "--ratios", type=_ratios, default=_RATIOS, metavar="W,...", help="workers for each parameter server"
    )
    jitter = "standard deviation of the logarithm of a worker's step time, for the simulation"
    parser.option("--jitter", 0.05, jitter, type=_not_negative("--jitter"))
    parser.option("--mtbf", 50_000.0, "hours between failures of a worker", type=positive("--mtbf"))
    parser.option("--restart", 60.0, "seconds until training goes on after a failure", type=positive("--restart"))
    parser.option("--save", 1.0, "seconds that training waits for a checkpoint", type=positive("--save"))
    parser.option("--out", Path("plan"), "folder for the results", type=Path)
    parser.add_argument(
        "--all-tables",
        action="store_true",
        help="print the ways for every number of workers, and simulated jobs (default: the ways for this job's number)",
    )
    options, rest = parser.parse_own(argv)
    request = PlanRequest(
        counts=options.workers,
        seconds=options.seconds,
        verify=options.verify,
        link=options.link,
        memory=options.memory,
        workers_per_host=options.workers_per_host,
        ratios=options.ratios,
        disturbances=Disturbances(options.jitter, options.mtbf, options.restart, options.save),
    )
    return PlanOptions(request, options.out, options.all_tables), [*rest, *(["--debug"] if options.debug else [])]


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(one) for one in number_list(text, "--workers", int, "1,2,4")}))


def _ratios(text: str) -> tuple[float, ...]:
    return tuple(number_list(text, "--ratios", float, "8,2,1"))


def _not_negative(option: str) -> Callable[[str], float]:
    def value(text: str) -> float:
        found = float(text)
        if not 0 <= found < float("inf"):
            raise UsageError(f"{option} is {text}.", "It must be 0 or more.", f"try {option} 0.05.")
        return found

    value.__name__ = "float"
    return value


def _size(text: str) -> int:
    try:
        if (size := parse_size(text)) > 0:
            return size
        raise ValueError(f"{text!r} is no memory at all")
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
