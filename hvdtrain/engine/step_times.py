"""How long steps take on each rank, and their parts: distributions in bounded memory."""

import time
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.adapters.step_timer import PARTS, add_columns
from hvdtrain.algorithms.quantile_sketch import Quantiles, QuantileSketch
from hvdtrain.comm.communicator import Communicator

NAMES: Final = ("step", "data", *PARTS)
"""A step as a whole, from the begin of its wait for data to its end, and its parts."""

_FOLDED: Final = 512  # steps: bounds the memory that their times take


class StepTimes:
    """Of this rank, and by `summaries` of all.

    Args:
        adapter: knows the parts.
        comm: the other ranks.
    """

    def __init__(self, adapter: Adapter, comm: Communicator) -> None:
        self._adapter, self._comm = adapter, comm
        self._sketches = QuantileSketch(), QuantileSketch()
        self._steps: list[tuple[float, float]] = []
        self._begin: float | None = None  # of the call of the adapter that is under way
        self._data = 0.0

    def start(self) -> None:
        """Forget the parts of steps before, which tuning has made."""
        self._adapter.take_part_times()

    def waited(self, begin: float, end: float) -> None:
        """A batch was waited for between two times of `time.perf_counter`; a step begins with that."""
        if self._begin is None:
            self._begin = begin
        self._data += end - begin

    def ended(self, steps: int) -> None:
        """A call of the adapter has ended that made so many steps."""
        if self._begin is None:
            return
        step = (time.perf_counter() - self._begin) / steps, self._data / steps
        self._begin, self._data = None, 0.0
        self._steps += [step] * steps
        if len(self._steps) >= _FOLDED:
            self._fold()

    def summaries(self) -> tuple[Mapping[str, Quantiles], ...]:
        """Of each rank, by the names in `NAMES`: what was measured there. Collective; call it once, after training."""
        self._fold()
        own = dict(zip(NAMES, self._sketches, strict=False)) | dict(self._adapter.take_part_times())
        row = [_numbers(own[name].summary() if name in own else Quantiles(0, 0, 0, 0, 0)) for name in NAMES]
        rows = self._comm.allgather(np.array([row], np.float64), "hvdtrain.meter.step_times")
        return tuple(_told(rank) for rank in rows.tolist())

    def _fold(self) -> None:
        if self._steps:
            add_columns(self._sketches, self._steps)
            self._steps = []


def _numbers(told: Quantiles) -> list[float]:
    return [told.count, told.p50, told.p90, told.p99, told.max]


def _told(rank: Sequence[Sequence[float]]) -> dict[str, Quantiles]:
    found = {name: Quantiles(int(count), *rest) for name, (count, *rest) in zip(NAMES, rank, strict=True)}
    return {name: quantiles for name, quantiles in found.items() if quantiles.max > 0}
