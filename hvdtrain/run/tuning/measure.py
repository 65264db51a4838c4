"""Time real training steps with several settings of one kind."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import TunableAdapter
from hvdtrain.algorithms.tuning import FIRST_STEPS, Looks, affordable
from hvdtrain.comm.communicator import Communicator

Times = dict[int, list[float]]
"""A setting → seconds of a step in each look at it, on the slowest rank."""


@dataclass(frozen=True)
class StepTimer:
    """Times steps. All of its methods are collective.

    Args:
        adapter: trains.
        batch: this rank's part of one global batch, which all steps train on.
        comm: the other ranks.
        number: of the step that is repeated.
    """

    adapter: TunableAdapter
    batch: LoadedBatch
    comm: Communicator
    number: int

    def look_at(self, arms: Sequence[int], use: Callable[[int], object], remaining: int, most_seconds: float) -> Times:
        """Look at as many settings as may be afforded; empty where that is too expensive.

        Args:
            arms: the default first, the most promising next. The same on all ranks.
            use: makes the adapter use one of them.
            remaining: how many updates are to come.
            most_seconds: that all looks may take.
        """
        own = [self._seconds(1), self._seconds(FIRST_STEPS - 1)]
        first, step = self.comm.allreduce(np.array(own), "hvdtrain.tuning.step", "max").tolist()
        change = max(0.0, first - step) if self.adapter.compiles_buckets else 0.0
        looks = affordable(arms, remaining, step, change, most_seconds)
        return {} if looks is None else self._looked(looks, use)

    def _looked(self, looks: Looks, use: Callable[[int], object]) -> Times:
        own = []
        for arm in looks.order:
            use(arm)
            self._seconds(1)
            own.append(self._seconds(looks.steps))
        slowest = self.comm.allreduce(np.array(own), "hvdtrain.tuning.looks", "max").tolist()
        times: Times = {}
        for arm, seconds in zip(looks.order, slowest, strict=True):
            times.setdefault(arm, []).append(seconds)
        return times

    def _seconds(self, steps: int) -> float:
        """Mean seconds of a step on this rank. The learning rate is 0: weights stay where numbers are as usual."""
        begin = time.perf_counter()
        for _ in range(steps):
            self.adapter.train_step(self.batch, self.number, 0.0)
        self.adapter.read_sums()  # waits for the device, and forgets the sums
        return (time.perf_counter() - begin) / steps
