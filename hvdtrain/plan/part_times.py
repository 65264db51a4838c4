"""How long the parts of a training step take on each worker by itself, while all of them compute."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from data_sharding import LoadedBatch
from hvdtrain.adapters.sync_state import LARGE_BYTES
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import agree, gather_json
from hvdtrain.run.prepare import RunSetup
from hvdtrain.run.start import open_adapter
from hvdtrain.topology import Topology

_WARM_UP: Final = 3
_LEAST_STEPS: Final = 5
_MOST_STEPS: Final = 50


@dataclass(frozen=True)
class StepTimes:
    """Of a worker alone, with a batch of so many records: seconds of the parts of a step."""

    records: int
    forward: float
    backward: float
    update: float

    @property
    def seconds(self) -> float:
        return self.forward + self.backward + self.update


@dataclass(frozen=True)
class WorkerSteps:
    """Steps of one worker without the others: the slowest one's."""

    whole: StepTimes  # with its batch
    half: StepTimes | None  # with half of it; None: it cannot be halved
    trained: float  # bytes of weights
    slots: float  # bytes of the optimizer's state, for each byte of weights
    # by so many seconds sums over all workers, of as many bytes as gradients have, make a step longer
    exchanging: float = 0.0


Sums = Callable[[], Callable[[], None]]
Beside = Callable[[Sequence[int]], Sums]
"""Elements of each tensor → starts their sums over all workers; what that returns waits for them."""


def measured_steps(
    setup: RunSetup,
    comm: Communicator,
    batch: LoadedBatch,
    half: LoadedBatch | None,
    seconds: float,
    beside: Beside | None,
) -> WorkerSteps:
    """Real steps of the whole model on each worker. Collective.

    Args:
        setup: of training in which each worker has all of the model.
        half: a part of `batch`.
        seconds: about how long each of the measurements may take.
        beside: starts sums over all workers; None: there is one worker, or its cores do not send.
    """
    alone, peak = Topology.single(), setup.schedule.peak
    adapter = agree(
        comm,
        lambda: open_adapter(setup.task, alone, setup.config.seed, peak, setup.config),
        "hvdtrain.plan.adapter",
    )
    whole = _timed(adapter, batch, comm, seconds)
    halved = None if half is None else _timed(adapter, half, comm, seconds)
    state = adapter.view_state()
    trained = sum(a.nbytes for name, a in state.items() if name.startswith("model/"))
    slots = sum(a.nbytes for name, a in state.items() if name.startswith("optimizer/"))
    exchanging = 0.0
    if beside is not None:
        sums = beside(_messages([a.size for name, a in state.items() if name.startswith("model/")]))
        exchanging = max(0.0, _timed(adapter, batch, comm, seconds, sums).seconds - whole.seconds)
    return WorkerSteps(whole, halved, trained, slots / max(1, trained), exchanging)


def _messages(elements: list[int]) -> list[int]:
    """As gradients are sent on CPUs: those of 1 MiB or more by themselves, the others together."""
    large = [count for count in elements if 4 * count >= LARGE_BYTES]
    return [*large, max(1, sum(elements) - sum(large))]


def _timed(
    adapter: Any, batch: LoadedBatch, comm: Communicator, seconds: float, beside: Sums = lambda: lambda: None
) -> StepTimes:
    """The median step of the slowest worker. All compute at the same time, as they do in training.

    Args:
        beside: starts something that runs beside each step; what it returns waits for that.
    """
    for step in range(_WARM_UP):
        adapter.train_step(batch, step, 0.0)
    adapter.read_sums()
    comm.barrier("hvdtrain.plan.ready")
    begin = time.perf_counter()
    adapter.train_step(batch, _WARM_UP, 0.0)
    adapter.read_sums()
    first_step = float(comm.allreduce(np.array([time.perf_counter() - begin]), "hvdtrain.plan.one", "max")[0])
    steps = min(_MOST_STEPS, max(_LEAST_STEPS, int(seconds / first_step)))
    samples = []
    for step in range(_WARM_UP + 1, _WARM_UP + 1 + steps):
        begin = time.perf_counter()
        wait = beside()
        adapter.train_step(batch, step, 0.0)
        wait()
        parts = adapter.read_sums().parts
        samples.append([time.perf_counter() - begin, *(parts.get(name, 0.0) for name in ("forward", "backward"))])
    whole, forward, backward = (statistics.median(column) for column in zip(*samples, strict=True))
    times = [len(batch.ids), forward, backward, max(0.0, whole - forward - backward)]
    records, *slowest = max(gather_json(comm, times, "hvdtrain.plan.times"), key=lambda worker: sum(worker[1:]))
    return StepTimes(int(records), *slowest)
