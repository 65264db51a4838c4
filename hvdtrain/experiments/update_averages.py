"""Averages by central servers and by Horovod's ring, on the links that there are or on emulated ones."""

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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


class ServerAverage:
    """One rank's part of an average by central servers, over mpi4py. All ranks call `run` equally often.

    The first K ranks serve a part of the numbers each: they receive it from all workers, add it up, and send the mean
    back (Li et al. 2014). Nothing is compressed or asynchronous.

    Args:
        world: MPI's communicator of all ranks.
        servers: how many of its ranks serve; the others work.
        numbers: float32 values of each worker.

    Raises ValueError: there is no server, or no worker.
    """

    def __init__(self, world: Any, servers: int, numbers: int) -> None:
        self._world, self._servers, self._rank = world, servers, world.Get_rank()
        self._workers = world.Get_size() - servers
        if servers < 1 or self._workers < 1:
            raise ValueError(f"{servers} servers of {world.Get_size()} ranks")
        self._parts = np.array_split(np.arange(numbers), servers)
        self.values: NDArray[np.float32] = np.zeros(numbers, np.float32)
        """A worker's numbers, which `run` replaces by their mean over workers."""
        length = len(self._parts[self._rank]) if self.serves else 0
        self._received = np.zeros((self._workers, length), np.float32)

    @property
    def serves(self) -> bool:
        """Whether this rank is a server."""
        return bool(self._rank < self._servers)

    def run(self) -> None:
        """One average; returns when this rank's part is done."""
        self._serve() if self.serves else self._work()

    def _serve(self) -> None:
        from mpi4py import MPI

        sources = range(self._servers, self._servers + self._workers)
        MPI.Request.Waitall(
            [self._world.Irecv(row, source=source) for row, source in zip(self._received, sources, strict=True)]
        )
        mean = self._received.mean(axis=0, dtype=np.float32)
        MPI.Request.Waitall([self._world.Isend(mean, dest=source) for source in sources])

    def _work(self) -> None:
        from mpi4py import MPI

        views = [self.values[part[0] : part[-1] + 1] if len(part) else self.values[:0] for part in self._parts]
        MPI.Request.Waitall([self._world.Isend(view, dest=server) for server, view in enumerate(views)])
        MPI.Request.Waitall([self._world.Irecv(view, source=server) for server, view in enumerate(views)])


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
    servers, sizes = (",".join(map(str, numbers)) for numbers in (request.servers, request.sizes))
    options = ["--servers", servers, "--sizes", sizes]
    bench = [sys.executable, "-m", "hvdtrain", "bench", "parameter-server", *options, "--repeats", str(request.repeats)]
    with (
        TemporaryDirectory(prefix="hvdtrain-averages-") as folder,
        emulated_links(machines, mbit) as links,
        mpirun_words(links) as start,
    ):
        printed_by([*start, *bench, "--out", folder])
        content = json.loads((Path(folder) / f"{NAME}.json").read_text())
    return [Average(**average) for average in content["links"][""]]


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
    panels = [
        partial(_draw_panel, name or f"An average on {machines} machines", averages, machines, number == 0)
        for number, (name, averages) in enumerate(links.items())
    ]
    width = 7 if len(panels) == 1 else 4 * len(panels)
    return write_results(folder, NAME, content, drawn_svg(width, 4, *panels))


def _draw_panel(title: str, averages: Sequence[Average], machines: int, is_first: bool, _: Any, axes: Any) -> None:
    ways = dict.fromkeys(average.way(machines) for average in averages)
    for way, colour, mark in zip(ways, cycle(_COLOURS), cycle(_MARKS), strict=False):
        points = [average for average in averages if average.way(machines) == way]
        sizes, medians = [point.nbytes for point in points], [1e3 * point.median for point in points]
        spans = [
            [1e3 * (point.median - min(point.seconds)) for point in points],
            [1e3 * (max(point.seconds) - point.median) for point in points],
        ]
        axes.errorbar(sizes, medians, spans, fmt=f"{mark}-", color=colour, capsize=3, ms=4, lw=1, label=way)
        predicted = [1e3 * point.predicted for point in points]
        axes.plot(sizes, predicted, "--", color=colour, lw=1, label=f"{way}, formula")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("bytes of each worker")
    axes.xaxis.set_major_formatter(lambda value, _: in_bytes(value))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    if is_first:
        axes.set_ylabel("milliseconds")
        axes.legend(frameon=False, fontsize=8)
