"""Laws of --sparse-gradients allgather, on every rank, for either framework."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from linear_training import done
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import gather_json
from hvdtrain.comm.open import open_communicator
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.engine.state_sync import assert_equal_weights
from hvdtrain.named_arrays import State
from hvdtrain.run.start import open_adapter
from hvdtrain.task.task import Task
from hvdtrain.topology import Topology, detect_topology

WORDS = 12
LENGTH = 3
LR = 0.1
STEPS = 5
SPARSE = TrainingOptions(sparse_gradients="allgather")


class Ranks:
    """All ranks, and one process beside them that trains on what they all have."""

    def __init__(self, framework: str) -> None:
        topology = detect_topology(os.environ)
        self.comm: Communicator = open_communicator(framework, topology, 60)
        self.rank, self.size = topology.rank, topology.size

    def train(self, task: Task, options: TrainingOptions) -> Adapter:
        adapter = open_adapter(task, self.comm.topology, 1, LR, options)
        for step in range(STEPS):
            adapter.train_step(batch_of(self.size, step, [self.rank]), step, LR)
        assert_equal_weights(self.comm, adapter.state(), "After training")
        assert adapter.read_sums().allreduce_seconds > 0
        return adapter

    def train_alone(self, task: Task, options: TrainingOptions) -> Adapter:
        adapter = open_adapter(task, Topology.single(), 1, LR, options)
        for step in range(STEPS):
            adapter.train_step(batch_of(self.size, step, range(self.size)), step, LR)
        return adapter

    def check_as_alone(self, task: Task, options: TrainingOptions = SPARSE) -> State:
        """Many ranks train as one process; returns the state that they come to."""
        many, one = self.train(task, options).state(), self.train_alone(task, options).state()
        require_close(many, one)
        return many

    def check_as_dense(self, task: Task, options: TrainingOptions = SPARSE) -> None:
        """Sparse or dense is a question of speed, for optimizers to which it is."""
        dense = self.train(task, replace(options, sparse_gradients="dense")).state()
        require_close(self.check_as_alone(task, options), dense)

    def require_refused_everywhere(self, work: Callable[[], object], *words: str) -> None:
        """`work` raises the same UsageError on all ranks."""
        from hvdtrain.errors import UsageError

        try:
            work()
        except UsageError as error:
            text = str(error)
        else:
            text = ""
        texts = gather_json(self.comm, text, "test.refusals")
        assert texts == [text] * self.size
        assert all(word in text for word in words), text

    def leave(self) -> None:
        self.comm.close()
        done(self.rank)


def batch_of(size: int, step: int, ranks: Any) -> LoadedBatch:
    """Rank r has r + 1 rows of words; words repeat in a row, and between ranks. Word 0 is nobody's."""
    of_rank = [words_of(rank, step) for rank in range(size)]
    words = np.concatenate([of_rank[rank] for rank in ranks])
    targets = np.sin(words.sum(axis=1)).astype(np.float32)
    total = float(sum(map(len, of_rank)))
    return LoadedBatch(step, np.arange(len(words)), np.ones(len(words), np.float32), {"w": words, "y": targets}, total)


def words_of(rank: int, step: int) -> NDArray[Any]:
    return np.random.default_rng([rank, step]).integers(1, WORDS, (rank + 1, LENGTH))


def require_close(one: State, other: State, rtol: float = 1e-4) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert_allclose(array, other[name], rtol=rtol, atol=rtol / 10, err_msg=name)
