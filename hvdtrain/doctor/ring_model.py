"""The cost of a ring allreduce, its fit to measured times, and the rates that are reported.

n workers, S bytes, each link with latency α and bandwidth B: 2(n-1) steps, each moving S/n bytes:

    t(S) = 2(n-1) (α + S / (n B))

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel Distrib. Comput.
69 (2009). Algorithm and bus bandwidth as nccl-tests define them, doc/PERFORMANCE.md: S/t, and that times 2(n-1)/n.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RingModel:
    """A fitted ring.

    Attributes:
        workers: n, 2 or more.
        latency: α in seconds; with what Horovod adds to each operation shared out over the steps.
        bandwidth: B in bytes/s; infinity where time does not grow with size.
        deviation: the largest relative distance of a measured time from the model.
    """

    workers: int
    latency: float
    bandwidth: float
    deviation: float = 0.0

    def seconds(self, size: float) -> float:
        """Time of one allreduce of `size` bytes."""
        return 2 * (self.workers - 1) * (self.latency + size / (self.workers * self.bandwidth))


def fit_ring(workers: int, times: Mapping[int, float]) -> RingModel:
    """The model nearest to measured times, by least squares of relative errors with α ≥ 0 and B > 0.

    Args:
        workers: 2 or more.
        times: bytes → seconds, both positive; two sizes or more.

    Raises:
        ValueError: too few workers or sizes.
    """
    if workers < 2 or len(times) < 2:
        raise ValueError("a ring has two workers or more, and a line needs two points")
    intercept, slope = _fit_line(times)
    bandwidth = 2 * (workers - 1) / (workers * slope) if slope > 0 else float("inf")
    model = RingModel(workers, intercept / (2 * (workers - 1)), bandwidth)
    deviation = max(abs(model.seconds(size) / seconds - 1) for size, seconds in times.items())
    return RingModel(workers, model.latency, model.bandwidth, deviation)


def _fit_line(times: Mapping[int, float]) -> tuple[float, float]:
    """Intercept and slope, both not negative, that minimize the sum of ((a + b x - t) / t)²."""
    weights = {x: 1 / t**2 for x, t in times.items()}
    w = sum(weights.values())
    wx = sum(weight * x for x, weight in weights.items())
    wxx = sum(weight * x * x for x, weight in weights.items())
    wt = sum(weight * times[x] for x, weight in weights.items())
    wxt = sum(weight * x * times[x] for x, weight in weights.items())
    slope = (w * wxt - wx * wt) / (w * wxx - wx * wx)
    intercept = (wt - slope * wx) / w
    if slope < 0:
        return wt / w, 0.0
    return (0.0, wxt / wxx) if intercept < 0 else (intercept, slope)


def algorithm_bandwidth(size: int, seconds: float) -> float:
    """Bytes that were reduced per second."""
    return size / seconds


def bus_bandwidth(workers: int, size: int, seconds: float) -> float:
    """Bytes per second that each link carried if the ring is what moved them; comparable over numbers of workers."""
    return algorithm_bandwidth(size, seconds) * 2 * (workers - 1) / workers
