"""Predictions against the real thing: the same steps, run on this job's workers."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from hvdtrain.comm.communicator import Communicator, SerialCommunicator
from hvdtrain.comm.messages import agree, broadcast_json, do_while_others_wait
from hvdtrain.comm.open import form_stages
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.plan.candidates import Candidate
from hvdtrain.plan.cost_model import Layout
from hvdtrain.run.prepare import fixed_batch, prepare, seconds_of_step
from hvdtrain.run.start import open_own_adapter, restore_and_broadcast
from hvdtrain.task.task import Task
from hvdtrain.topology import Topology

RUNS: Final = 5
_WARM_UP: Final = 10
_MOST_STEPS: Final = 200
_LONGEST_S: Final = 7200.0


@dataclass(frozen=True)
class Verified:
    name: str  # for people
    predicted: float  # seconds of a step
    measured: Sequence[float]  # of each run, seconds of a step

    @property
    def median(self) -> float:
        return statistics.median(self.measured)

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was measured."""
        return self.predicted / self.median - 1


def config_of(layout: Layout, config: TrainConfig) -> TrainConfig:
    """The options that train in this layout."""
    if layout.stages > 1:
        stages = ParallelOptions(layout.stages, micro_batches=layout.micro_batches)
        return replace(config, shard="none", parallel=stages)
    return replace(config, shard=layout.shard, parallel=ParallelOptions())


def verified(
    ways: Sequence[Candidate], config: TrainConfig, kind: type[Task], comm: Communicator, seconds: float, memory: float
) -> list[Verified]:
    """Run each of the candidates that hvdtrain has, on all workers of this job. Collective.

    Runs of different ways take turns, so that a slow minute of the machine strikes all of them; unless all together do
    not fit into the memory.

    Args:
        ways: for as many workers as this job has.
        memory: bytes of a worker.
    """
    runnable = [way for way in ways if way.options is not None and way.fits]
    together = sum(way.prediction.memory for way in runnable) <= memory
    measured: list[list[float]] = []
    for group in [runnable] if together else [[way] for way in runnable]:
        timed = [TimedWay(config_of(way.layout, config), kind, comm) for way in group]
        measured += in_turns(timed, seconds)
    return [Verified(way.name, way.prediction.seconds, times) for way, times in zip(runnable, measured, strict=True)]


def measured_best(ways: Sequence[Candidate], measured: Sequence[Verified]) -> Candidate | None:
    """The way that was measured to be the fastest; of those within 2 % of it, the simplest. None: none was measured."""
    medians = {way.name: way.median for way in measured}
    least = min(medians.values(), default=0.0)
    return next((way for way in ways if way.name in medians and 0.98 * medians[way.name] <= least), None)


def in_turns(ways: Sequence["TimedWay"], seconds: float) -> list[list[float]]:
    """Seconds of a step of each way in each of `RUNS` runs, of the slowest worker; the runs of a way may take about
    `seconds`. Collective."""
    counts = [way.warm_up(seconds / RUNS) for way in ways]
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(RUNS):
        for way, count, runs in zip(ways, counts, times, strict=True):
            runs.append(way.timed(count))
    return times


class TimedWay:
    """A model that trains in one way, on the same batch again and again. Collective."""

    def __init__(self, config: TrainConfig, kind: type[Task], comm: Communicator) -> None:
        form_stages(kind.framework, comm, config.parallel)
        setup = prepare(config, kind, comm)
        self._comm, self._step = comm, 0
        self._batch = agree(comm, lambda: fixed_batch(setup), "hvdtrain.plan.verify.batch")
        self._adapter = open_own_adapter(setup, comm)
        restore_and_broadcast(setup, self._adapter, None, comm)

    def warm_up(self, seconds: float) -> int:
        """Returns how many steps take about so long."""
        self.timed(_WARM_UP)
        return max(2, min(_MOST_STEPS, int(seconds / self.timed(2))))

    def timed(self, steps: int) -> float:
        """Seconds of a step."""
        self._comm.barrier("hvdtrain.plan.verify.ready")
        took = np.array([seconds_of_step(self._adapter, self._batch, range(self._step, self._step + steps))])
        self._step += steps
        return float(self._comm.allreduce(took, "hvdtrain.plan.verify.seconds", "max")[0])


def times_alone(config: TrainConfig, kind: type[Task], comm: Communicator, seconds: float) -> list[float]:
    """As `in_turns`, of one way: rank 0 trains the whole batch by itself, and the others wait. Collective."""

    def work() -> list[float] | None:
        if not comm.topology.is_root:
            return None
        return in_turns([TimedWay(config, kind, SerialCommunicator(Topology.single()))], seconds)[0]

    seconds_alone = do_while_others_wait(comm, work, "hvdtrain.plan.alone.wait", _LONGEST_S)
    return [float(value) for value in broadcast_json(comm, seconds_alone, "hvdtrain.plan.alone")]
