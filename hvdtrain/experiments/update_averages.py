"""Averages by central servers and by Horovod's ring, on the links that there are or on emulated ones."""

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from hvdtrain.comm.communicator import Communicator
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.doctor.allreduce_times import fit_ring
from hvdtrain.errors import UsageError
from hvdtrain.experiments.emulated_links import emulated_links, mpirun_words
from hvdtrain.experiments.measured_run import printed_by
from hvdtrain.plan.cost_model import LinkModel, ring_seconds, server_seconds
from hvdtrain.plan.plan_files import drawn_svg, write_results
from hvdtrain.topology import Topology
from hvdtrain.units import in_bytes, in_seconds
from hvdtrain.version import versions

NAME: Final = "parameter-server"  # Of the files

_STALL_SECONDS: Final = 60.0

Curves = Mapping[str, Mapping[int, tuple[Sequence[float], float]]]
"""Name → bytes → (seconds of each run, seconds by the formula)."""

_COLOURS: Final = ("#a02c1e", "#34495e", "#2a7f62", "#8e6c1f", "#6c4a8c")
_MARKS: Final = ("o", "s", "^", "D", "v")


@dataclass(frozen=True)
class AveragesRequest:
    """What is asked for."""

    servers: Sequence[int]  # numbers of machines that serve
    sizes: Sequence[int]  # bytes of each worker
    repeats: int  # timed averages of each kind

    def require_workers(self, machines: int, hint: str) -> None:
        """Raise `UsageError` where so many machines leave no worker beside the servers."""
        if machines <= max(self.servers):
            raise UsageError(
                f"There are {machines} machines, and --servers is {max(self.servers)}.",
                "A server needs a worker.",
                hint,
            )


@dataclass(frozen=True)
class Average:
    """Averages of some bytes."""

    servers: int  # 0: the ring of all machines
    nbytes: int  # of each worker
    seconds: Sequence[float]  # of each average, on the slowest rank
    predicted: float  # by the formula, with the link that was fitted to the ring

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def way(self, machines: int) -> str:
        """Its name for people."""
        if self.servers == 0:
            return f"ring of {machines}"
        workers = machines - self.servers
        return f"{workers} worker{'s' * (workers > 1)}, {self.servers} server{'s' * (self.servers > 1)}"


def measured_averages(request: AveragesRequest, topology: Topology) -> list[Average]:
    """The ring first, from which the link follows. Every rank calls it. Raises `UsageError` where there is no MPI."""
    from hvdtrain.adapters.chosen_framework import bind_device_and_threads
    from hvdtrain.comm.open import form_stages, open_communicator
    from hvdtrain.comm.process_sets import mpi_world
    from hvdtrain.comm.torch_binding import TorchAllreduce
    from hvdtrain.experiments.server_average import ServerAverage

    bind_device_and_threads("torch", topology)
    comm, size = open_communicator("torch", topology, _STALL_SECONDS), topology.size
    form_stages("torch", comm, ParallelOptions(size, transport="mpi"))  # which needs MPI, and opens it
    world, operation = mpi_world(ParallelOptions(size)), TorchAllreduce()
    ring = {n: _timed(operation.prepare(n // 4), comm, request.repeats) for n in request.sizes}
    model = fit_ring(size, {n: statistics.median(times) for n, times in ring.items()})
    link = LinkModel(model.latency, model.bandwidth)
    averages = [Average(0, n, times, ring_seconds(n, size, link)) for n, times in ring.items()]
    for servers in request.servers:
        for n in request.sizes:
            times = _timed(ServerAverage(world, servers, n // 4).run, comm, request.repeats)
            averages.append(Average(servers, n, times, server_seconds(n, size - servers, servers, link)))
    comm.close()
    return averages


def _timed(average: Callable[[], None], comm: Communicator, repeats: int) -> list[float]:
    average()
    seconds = []
    for _ in range(repeats):
        comm.barrier("hvdtrain.bench.average")
        begin = time.perf_counter()
        average()
        seconds.append(time.perf_counter() - begin)
    return [float(value) for value in comm.allreduce(np.array(seconds), "hvdtrain.bench.average.seconds", "max")]


def averages_over(mbit: int, machines: int, request: AveragesRequest) -> list[Average]:
    """The same on emulated machines, each of which sends and receives `mbit` million bits a second at most.

    Raises:
        UsageError: this machine cannot emulate links.
        HvdtrainError: the measurement failed.
    """
    options = ["--servers", _words(request.servers), "--sizes", _words(request.sizes)]
    bench = [sys.executable, "-m", "hvdtrain", "bench", "parameter-server", *options, "--repeats", str(request.repeats)]
    with (
        TemporaryDirectory(prefix="hvdtrain-averages-") as folder,
        emulated_links(machines, mbit) as links,
        mpirun_words(links) as start,
    ):
        printed_by([*start, *bench, "--out", folder])
        content = json.loads((Path(folder) / f"{NAME}.json").read_text())
    return [Average(**average) for average in content["links"][""]]


def _words(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def average_rows(averages: Sequence[Average], machines: int) -> list[list[str]]:
    """Way, bytes, median, 1.96 standard deviations, formula, and the share of the ring's time, of each average."""
    ring = {average.nbytes: average.median for average in averages if average.servers == 0}
    return [
        [
            average.way(machines),
            in_bytes(average.nbytes),
            in_seconds(average.median),
            f"± {in_seconds(1.96 * statistics.stdev(average.seconds))}",
            in_seconds(average.predicted),
            f"{average.median / ring[average.nbytes]:.2f}",
        ]
        for average in averages
    ]


def write_averages(links: Mapping[str, Sequence[Average]], machines: int, folder: Path) -> str:
    """See `write_results`. Args: `links`: averages by the name of the link; "" is the one that there is."""
    content = {
        "machines": machines,
        "links": {name: [asdict(average) for average in averages] for name, averages in links.items()},
        "versions": versions(),
    }
    return write_results(folder, NAME, content, _drawn_curves(_panels(links, machines)))


def _panels(links: Mapping[str, Sequence[Average]], machines: int) -> dict[str, Curves]:
    panels: dict[str, Curves] = {}
    for name, averages in links.items():
        curves: dict[str, dict[int, tuple[Sequence[float], float]]] = {}
        for average in averages:
            curves.setdefault(average.way(machines), {})[average.nbytes] = average.seconds, average.predicted
        panels[f"An average on {machines} machines" if name == "" else name] = curves
    return panels


def _drawn_curves(panels: Mapping[str, Curves]) -> bytes:
    """An SVG of panels side by side, whose curves have the same names. Args: `panels`: by their titles."""
    draws = [partial(_draw_panel, title, curves, number == 0) for number, (title, curves) in enumerate(panels.items())]
    return drawn_svg(7 if len(panels) == 1 else 4 * len(panels), 4, *draws)


def _draw_panel(title: str, curves: Curves, is_first: bool, _: Any, axes: Any) -> None:
    for number, (name, points) in enumerate(curves.items()):
        colour, mark = _COLOURS[number % len(_COLOURS)], _MARKS[number % len(_MARKS)]
        medians = [1e3 * statistics.median(seconds) for seconds, _ in points.values()]
        spans = [
            [m - 1e3 * min(seconds) for m, (seconds, _) in zip(medians, points.values(), strict=True)],
            [1e3 * max(seconds) - m for m, (seconds, _) in zip(medians, points.values(), strict=True)],
        ]
        axes.errorbar(list(points), medians, spans, fmt=f"{mark}-", color=colour, capsize=3, ms=4, lw=1, label=name)
        predicted = [1e3 * seconds for _, seconds in points.values()]
        axes.plot(list(points), predicted, "--", color=colour, lw=1, label=f"{name}, formula")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("bytes of each worker")
    axes.xaxis.set_major_formatter(lambda value, _: in_bytes(value))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    if is_first:
        axes.set_ylabel("milliseconds")
        axes.legend(frameon=False, fontsize=8)
