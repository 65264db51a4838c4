"""Laws of local SGD, on every rank, for either framework."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from linear_training import LR, batch_of, done, simulate, vector, weights_of
from numpy.testing import assert_allclose, assert_array_equal

from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import gather_json
from hvdtrain.comm.open import open_communicator
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.config.value_syntax import resolve
from hvdtrain.engine.state_sync import assert_equal_weights, average_rank_local_state
from hvdtrain.run.start import open_adapter
from hvdtrain.task.task import Task
from hvdtrain.topology import detect_topology

SGD = TrainingOptions(optimizer="sgd", momentum=0.9)
STEPS = 8


class Ranks:
    """One task on all ranks."""

    def __init__(self, task: Task, sets: str) -> None:
        topology = detect_topology(os.environ)
        self.task = task
        self.comm: Communicator = open_communicator(task.framework, topology, 60, sets)
        self.rank, self.size = topology.rank, topology.size
        self.sets = resolve(sets, [0] * self.size)
        self.alone = tuple((rank,) for rank in range(self.size))

    def open(self, options: TrainingOptions) -> Adapter:
        return open_adapter(self.task, self.comm.topology, 1, LR, options)

    def train(self, adapter: Adapter, begin: int, end: int) -> None:
        for step in range(begin, end):
            adapter.train_step(batch_of(self.size, step, [self.rank]), step, LR)

    def average_weights(self, adapter: Adapter) -> None:
        average_rank_local_state(self.comm, adapter)
        assert_equal_weights(self.comm, adapter.state(), "After an average")

    def differ(self, array: Any) -> bool:
        others = gather_json(self.comm, array.tolist(), "test.arrays")
        return any(other != others[0] for other in others)


def check_all(task: Task, *more: Callable[[Ranks], None]) -> None:
    """argv: the process sets."""
    sets = sys.argv[1]
    ranks = Ranks(task, sets)
    local, in_sets = replace(SGD, sync_every=3), replace(SGD, sync_every=3, process_sets=sets)
    for options, of_whom in ((local, ranks.alone), (in_sets, ranks.sets), (replace(in_sets, sync_every=1), ranks.sets)):
        check_numbers(ranks, options, of_whom)
    check_every_update_is_synchronous(ranks, replace(in_sets, sync_every=1, ema_decay=0.9))
    check_when_ranks_are_equal(ranks, replace(local, ema_decay=0.9))
    check_resume(ranks, in_sets)
    for check in more:
        check(ranks)
    ranks.comm.close()
    done(ranks.rank)


def check_numbers(ranks: Ranks, options: TrainingOptions, sets: tuple[tuple[int, ...], ...]) -> None:
    """Weights and momentum are those that numpy comes to."""
    adapter = ranks.open(options)
    start = weights_of(adapter)
    ranks.train(adapter, 0, STEPS)
    ranks.average_weights(adapter)
    assert options.sync_every is not None
    weights, momentum = simulate(start, sets, ranks.size, options.sync_every, STEPS)
    assert_allclose(weights_of(adapter), weights, rtol=1e-4, atol=1e-5)
    assert_allclose(vector(adapter, "optimizer/"), momentum, rtol=1e-4, atol=1e-4)


def check_every_update_is_synchronous(ranks: Ranks, options: TrainingOptions) -> None:
    """With sync_every 1 weights, momentum and their moving average are those of synchronous training."""
    local, synchronous = ranks.open(options), ranks.open(replace(options, sync_every=None, process_sets=None))
    for adapter in (local, synchronous):
        ranks.train(adapter, 0, STEPS)
        ranks.average_weights(adapter)
    for prefix in ("model/", "optimizer/", "ema/"):
        assert_allclose(vector(local, prefix), vector(synchronous, prefix), rtol=1e-4, atol=1e-5)


def check_when_ranks_are_equal(ranks: Ranks, options: TrainingOptions) -> None:
    """They differ between two averages, and are equal after one, whether it was due or asked for."""
    adapter = ranks.open(options)
    ranks.train(adapter, 0, 2)
    assert ranks.differ(weights_of(adapter))
    ranks.average_weights(adapter)
    settled = weights_of(adapter)
    ranks.average_weights(adapter)
    assert_array_equal(weights_of(adapter), settled)  # nothing is averaged twice
    assert not ranks.differ(vector(adapter, "ema/"))
    ranks.train(adapter, 2, 3)
    assert not ranks.differ(weights_of(adapter))
    assert not ranks.differ(vector(adapter, "optimizer/"))
    sums = adapter.read_sums()
    assert sums.allreduce_seconds > 0


def check_resume(ranks: Ranks, options: TrainingOptions) -> None:
    """A run that goes on from a checkpoint between two averages is the run that saved it there, bit by bit."""
    whole, resumed = ranks.open(options), ranks.open(options)
    ranks.train(whole, 0, 4)
    ranks.average_weights(whole)
    resumed.load_state({name: np.array(array) for name, array in whole.state().items()})
    for adapter in (whole, resumed):
        ranks.train(adapter, 4, STEPS)
        ranks.average_weights(adapter)
    expected, got = whole.state(), resumed.state()
    assert expected.keys() == got.keys()
    for name, array in expected.items():
        assert_array_equal(got[name], array)
