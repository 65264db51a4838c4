"""How long steps take on each rank, and their parts: distributions in bounded memory."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.algorithms.quantile_sketch import Quantiles, SketchedSteps
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.rank_reduction import reduce_ranks
from hvdtrain.measured import TIMED
from hvdtrain.rank_summary import RankSummary

_HERE: Final = ("step", "data")
NAMES: Final = (*_HERE, *TIMED)
"""A step as a whole, from the beginning of its wait for data to its end, and its parts."""


_QUANTILES: Final = tuple(field.name for field in fields(Quantiles))


_OPERATION: Final = "hvdtrain.meter.step_times"


class StepTimes:
    """Of this rank, and by `summaries` of all. The adapter knows the parts."""

    def __init__(self, adapter: Adapter, comm: Communicator) -> None:
        self._adapter, self._comm = adapter, comm
        self._steps = SketchedSteps(_HERE)
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
        for _ in range(steps):
            self._steps.append(step)

    def summaries(self) -> tuple[Mapping[str, Quantiles], ...]:
        """Of each rank, by the names in `NAMES`: what was measured there. Collective; call it once, after training."""
        rows = self._comm.allgather(self._row(), _OPERATION)
        return tuple(_quantiles(rank) for rank in rows.tolist())

    def summarized(self, hosts: Sequence[str]) -> dict[str, dict[str, RankSummary]]:
        """The same as a summary of all ranks for each name and quantile. Collective; call it once in its place."""
        columns = self._row().reshape(-1).tolist()
        reduced = reduce_ranks(self._comm, columns, _OPERATION, named=range(len(columns)), hosts=hosts)
        each = len(_QUANTILES)
        of_name = [reduced.summaries[place : place + each] for place in range(0, len(columns), each)]
        summaries = {name: dict(zip(_QUANTILES, of, strict=True)) for name, of in zip(NAMES, of_name, strict=True)}
        return {name: quantiles for name, quantiles in summaries.items() if quantiles["max"].max > 0}

    def _row(self) -> NDArray[np.float64]:
        """Of this rank, [1, names, quantiles]."""
        sketches = {**self._steps.take_sketches(), **self._adapter.take_part_times()}
        row = [astuple(sketches[name].summary() if name in sketches else Quantiles(0, 0, 0, 0, 0)) for name in NAMES]
        return np.array([row], np.float64)


def _quantiles(rank: Sequence[Sequence[float]]) -> dict[str, Quantiles]:
    times = {name: Quantiles(int(count), *rest) for name, (count, *rest) in zip(NAMES, rank, strict=True)}
    return {name: quantiles for name, quantiles in times.items() if quantiles.max > 0}
