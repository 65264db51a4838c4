"""A linear model with squared errors, which numpy can train beside the frameworks, and slices of uneven sizes."""

from __future__ import annotations

import os
from abc import ABC
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_sharding import LoadedBatch, RecordBatch
from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.comm.communicator import Communicator
from hvdtrain.errors import HvdtrainError
from hvdtrain.task.data_access import DataAccess
from hvdtrain.task.splits import Splits
from hvdtrain.task.task import Features, Task

WIDTH = 5
LR = 0.05
MOMENTUM = 0.9


class NoData(Task, ABC):
    """Its batches are made here."""

    def open_data(self, data: DataAccess) -> Splits:
        raise NotImplementedError

    def decode(self, records: RecordBatch) -> Features:
        raise NotImplementedError


def rows(size: int, step: int, ranks: Iterable[int]) -> tuple[NDArray[Any], NDArray[Any]]:
    """What `ranks` of `size` have of a step's global batch: rank r has r + 1 rows."""
    begin = [rank * (rank + 1) // 2 for rank in range(size + 1)]
    total = begin[size]
    random = np.random.default_rng(step)
    x = random.normal(size=(total, WIDTH)).astype(np.float32)
    y = random.normal(size=total).astype(np.float32)
    own = [row for rank in ranks for row in range(begin[rank], begin[rank + 1])]
    return x[own], y[own]


def batch_of(size: int, step: int, ranks: Iterable[int]) -> LoadedBatch:
    """The same as the loader would hand it over."""
    x, y = rows(size, step, ranks)
    everything = float(len(rows(size, step, range(size))[1]))
    return LoadedBatch(step, np.arange(len(y)), np.ones(len(y), np.float32), {"x": x, "y": y}, everything)


def simulate(
    start: NDArray[Any], sets: Iterable[tuple[int, ...]], size: int, every: int, steps: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Weights and momentum after local SGD, in float64, averaged at the end too."""
    sets = list(sets)
    weights = {ranks: np.array(start, np.float64) for ranks in sets}
    momenta = {ranks: np.zeros(WIDTH) for ranks in sets}

    def average(of_sets: dict[tuple[int, ...], NDArray[Any]]) -> NDArray[Any]:
        return np.sum([len(ranks) * of_sets[ranks] for ranks in sets], axis=0) / size

    for step in range(steps):
        for ranks in sets:
            x, y = rows(size, step, ranks)
            everything = len(rows(size, step, range(size))[1])
            gradient = size / len(ranks) * (2 * (x @ weights[ranks] - y) @ x) / everything
            momenta[ranks] = MOMENTUM * momenta[ranks] + gradient
            weights[ranks] = weights[ranks] - LR * momenta[ranks]
        if (step + 1) % every == 0:
            weights, momenta = (dict.fromkeys(sets, average(of_sets)) for of_sets in (weights, momenta))
    return average(weights), average(momenta)


def weights_of(adapter: Adapter) -> NDArray[Any]:
    """[WIDTH]."""
    return vector(adapter, "model/")


def vector(adapter: Adapter, prefix: str) -> NDArray[Any]:
    """The one float array of WIDTH numbers whose name begins so."""
    (found,) = [a for n, a in adapter.state().items() if n.startswith(prefix) and a.size == WIDTH]
    return np.array(found.reshape(-1))


def said_of_changes(adapter: Adapter, comm: Communicator) -> str:
    """What `take_changes` says on this rank, after user code has done something on it."""
    try:
        adapter.take_changes(comm)
    except HvdtrainError as error:
        return error.fact if error.joint else f"on this rank alone: {error.fact}"
    return "nothing"


def done(rank: int) -> None:
    """Tell the test."""
    os.write(1, f"CHECKED rank {rank}\n".encode())
