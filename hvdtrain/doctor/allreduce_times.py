"""Measure allreduces of growing sizes on all ranks of a job, within a given time, and fit a ring to them.

The cost of a ring allreduce: n workers, S bytes, each link with latency α and bandwidth B; 2(n-1) steps, each moving
S/n bytes:

    t(S) = 2(n-1) (α + S / (n B))

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel Distrib. Comput.
69 (2009). Algorithm and bus bandwidth as nccl-tests define them, doc/PERFORMANCE.md: S/t, and that times 2(n-1)/n.
"""

import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import broadcast_json, gather_json
from hvdtrain.version import versions

FORMAT = 1  # Version of the JSON that is printed; see docs/doctor.md

SIZES = (4, 1024, 2**14, 2**18, 2**20, 2**22, 2**24, 2**26)
"""Bytes: from one number to what Horovod's fusion buffer holds at least."""

DIRECT_BYTES = 128 * 1024
"""Sums of which a worker receives no more are no ring over Gloo: horovod_wheel/patches/25-gloo-direct-sums.patch."""

_TELLING = 3  # sizes that are fitted, at least
_LEAST, _MOST = 5, 100
_GROWS = 2**18


class Prepared(Protocol):
    """A framework's allreduce. `kind` is what moves the bytes: "gloo", "mpi" or "nccl"."""

    kind: str

    def prepare(self, elements: int) -> Callable[[], None]:
        """A function that sums so many float32 values over all ranks, and returns when that is done."""


def measure(comm: Communicator, operation: Prepared, framework: str, sizes: Sequence[int], seconds: float) -> Any:
    """The report of one measurement, as JSON holds it, the same on all ranks.

    Args:
        comm: of two ranks or more.
        sizes: bytes, multiples of 4.
        seconds: about how long it may take; sizes for which no time is left are left out, the smallest two never.
    """
    size = comm.topology.size
    deadline = time.monotonic() + seconds
    points: list[dict[str, Any]] = []
    lengths = sorted(set(sizes))
    for number, length in enumerate(lengths):
        if number >= 2 and not _time_is_left(comm, length, points[-1], deadline):
            break
        # Larger sizes cost more, so none may take more than a tenth while others wait.
        share = min(seconds / 10, max(0.0, deadline - time.monotonic()) / (len(lengths) - number))
        points.append(_point(comm, operation.prepare(length // 4), length, share))
    times = ring_times(size, operation.kind, points)
    model = fit_ring(size, times) if len(times) > 1 else None
    return {
        "format": FORMAT,
        "framework": framework,
        "transport": operation.kind,
        "workers": size,
        "hosts": gather_json(comm, socket.gethostname(), "hvdtrain.bench.hosts"),
        "sizes": points,
        "model": model
        and {
            "latency": model.latency,
            "bandwidth": model.bandwidth if model.bandwidth < float("inf") else None,
            "deviation": model.deviation,
        },
        "versions": versions(),
    }


def _time_is_left(comm: Communicator, length: int, last: dict[str, Any], deadline: float) -> bool:
    """Rank 0 decides for all, or they would part. Below `_GROWS`, latency is most of the time: more costs as much."""
    growth = length / last["bytes"] if last["bytes"] >= _GROWS else 1.0
    left = deadline - time.monotonic() > 2 * growth * last["seconds"]
    return bool(broadcast_json(comm, left, f"hvdtrain.bench.left.{length}"))


def _point(comm: Communicator, run: Callable[[], None], length: int, share: float) -> dict[str, Any]:
    """At least once after a warm-up, `_LEAST` times if `share` seconds allow it."""
    first = _timed(run)
    if broadcast_json(comm, first < share / _LEAST, f"hvdtrain.bench.warm.{length}"):
        first = _timed(run)  # the first one also fills caches and makes connections
    wanted = min(_MOST, max(1, int(share / max(first, 1e-6))))
    count = int(broadcast_json(comm, wanted, f"hvdtrain.bench.count.{length}"))
    median = statistics.median(_timed(run) for _ in range(count))
    slowest = float(comm.allreduce(np.array([median]), f"hvdtrain.bench.seconds.{length}", "max")[0])
    return {
        "bytes": length,
        "count": count,
        "seconds": slowest,
        "algorithm_bandwidth": length / slowest,
        "bus_bandwidth": bus_bandwidth(comm.topology.size, length, slowest),
    }


def _timed(run: Callable[[], None]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


@dataclass(frozen=True, slots=True)
class RingModel:
    """A fitted ring."""

    workers: int  # n, 2 or more
    latency: float  # α in seconds; with what Horovod adds to each operation shared out over the steps
    bandwidth: float  # B in bytes/s; infinity where time does not grow with size
    deviation: float = 0.0  # the largest relative distance of a measured time from the model

    def seconds(self, size: float) -> float:
        """Time of one allreduce of `size` bytes."""
        return 2 * (self.workers - 1) * (self.latency + size / (self.workers * self.bandwidth))


def ring_times(workers: int, transport: str, points: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Bytes → seconds of what went around the ring; of all measured `points` where these are too few for a fit."""
    times = {int(point["bytes"]): float(point["seconds"]) for point in points}
    least = DIRECT_BYTES / (workers - 1) if transport == "gloo" else 0
    by_ring = {size: seconds for size, seconds in times.items() if size > least}
    return by_ring if len(by_ring) >= _TELLING else times


def fit_ring(workers: int, times: Mapping[int, float]) -> RingModel:
    """The model nearest to measured times, by least squares of relative errors with α ≥ 0 and B > 0.

    `times` maps bytes to seconds, both positive. ValueError for less than two workers or two sizes.
    """
    if workers < 2 or len(times) < 2:
        raise ValueError("a ring has two workers or more, and a line needs two points")
    intercept, slope = _fit_line(times)
    bandwidth = 2 * (workers - 1) / (workers * slope) if slope > 0 else float("inf")
    model = RingModel(workers, intercept / (2 * (workers - 1)), bandwidth)
    deviation = max(abs(model.seconds(size) / seconds - 1) for size, seconds in times.items())
    return replace(model, deviation=deviation)


def _fit_line(times: Mapping[int, float]) -> tuple[float, float]:
    """Intercept and slope, both not negative, that minimize the sum of ((a + b x - t) / t)²."""
    x, t = np.array(list(times), np.float64), np.array(list(times.values()))
    slope, intercept = np.polyfit(x, t, 1, w=1 / t).tolist()
    if slope < 0:
        return float((1 / t).sum() / (1 / t**2).sum()), 0.0
    return (0.0, float((x / t).sum() / (x**2 / t**2).sum())) if intercept < 0 else (intercept, slope)


def bus_bandwidth(workers: int, size: int, seconds: float) -> float:
    """Bytes per second that each link carried if the ring is what moved them; comparable over numbers of workers."""
    return size / seconds * 2 * (workers - 1) / workers
