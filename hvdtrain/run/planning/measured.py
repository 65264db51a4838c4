"""What the formulas are given: times and bytes of the model on this job's workers, and of the links between them."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from data_sharding import LoadedBatch
from hvdtrain.adapters.gradient_sync import BUCKET_BYTES, LARGE_BYTES
from hvdtrain.adapters.open import open_adapter, time_layers, time_message
from hvdtrain.algorithms.cost_model import Layers, LinkModel, Workload
from hvdtrain.algorithms.micro_batches import micro_batches
from hvdtrain.comm.interface import Communicator
from hvdtrain.comm.messages import agree, broadcast_json, gather_json
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.doctor.allreduce import fit_ring
from hvdtrain.doctor.allreduce import measure as measure_allreduces
from hvdtrain.run.fixed_batch import fixed_batch
from hvdtrain.run.prepare import RunSetup
from hvdtrain.topology import Topology

_WARM_UP: Final = 3
_LEAST_STEPS: Final = 5
_MOST_STEPS: Final = 50
_RING_SIZES: Final = (4, 2**14, 2**18, 2**20, 2**22, 2**24)
_MESSAGE_SIZES: Final = (2**10, 2**16, 2**20, 2**22)


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


Sums = Callable[[], Callable[[], None]]
Beside = Callable[[Sequence[int]], Sums]
"""Elements of each tensor → starts their sums over all workers; what that returns waits for them."""


@dataclass(frozen=True)
class Measured:
    """What is trained, and by how many seconds sums of as many bytes as its gradients make a step longer."""

    work: Workload
    exchanging: float


def undivided(config: TrainConfig) -> TrainConfig:
    """The same training, where each worker has all of the model."""
    return replace(config, parallel=ParallelOptions(), shard="none")


def measured_workload(setup: RunSetup, comm: Communicator, seconds: float, beside: Beside | None) -> "Measured":
    """Times of the model while all workers of this job compute, each alone. Collective.

    Two sizes of batch are timed, because a pass takes a fixed time and a time for each record.

    Args:
        setup: of `undivided` training.
        seconds: about how long the measurement may take.
        beside: starts sums over all workers; None: there is one worker, or its cores do not send.
    """
    config = undivided(setup.config)
    batch = agree(comm, lambda: fixed_batch(setup), "hvdtrain.plan.batch")
    adapter = agree(
        comm,
        lambda: open_adapter(setup.task, Topology.single(), config.seed, setup.schedule.peak, config),
        "hvdtrain.plan.adapter",
    )
    whole = _timed(adapter, batch, comm, seconds / 2)
    smallest = setup.task.smallest_slice
    half = _timed(adapter, micro_batches(batch, 2)[0], comm, seconds / 2) if len(batch.ids) >= 2 * smallest else whole
    state = adapter.view_state()
    trained = sum(a.nbytes for name, a in state.items() if name.startswith("model/"))
    slots = sum(a.nbytes for name, a in state.items() if name.startswith("optimizer/"))
    exchanging = 0.0
    if beside is not None:
        sums = beside(_messages([a.size for name, a in state.items() if name.startswith("model/")]))
        exchanging = _timed(adapter, batch, comm, seconds / 2, sums).seconds - whole.seconds
    del adapter, state
    layers = _layers(setup, comm, batch, whole, half)
    if not sum(layer.weights for layer in layers):  # a model that cannot be cut
        layers = [replace(layers[0], weights=trained)]
    fixed = max(0.0, 2 * (half.forward + half.backward) - (whole.forward + whole.backward)) if half != whole else 0.0
    size = float(setup.config.global_batch_size or 1)
    work = Workload(layers, size, fixed, whole.update, slots / max(1, trained), float(BUCKET_BYTES), smallest)
    return Measured(work, max(0.0, exchanging))


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
    one = float(comm.allreduce(np.array([time.perf_counter() - begin]), "hvdtrain.plan.one", "max")[0])
    steps = min(_MOST_STEPS, max(_LEAST_STEPS, int(seconds / one)))
    found = []
    for step in range(_WARM_UP + 1, _WARM_UP + 1 + steps):
        begin = time.perf_counter()
        wait = beside()
        adapter.train_step(batch, step, 0.0)
        wait()
        parts = adapter.read_sums().parts
        found.append([time.perf_counter() - begin, *(parts.get(name, 0.0) for name in ("forward", "backward"))])
    whole, forward, backward = (statistics.median(column) for column in zip(*found, strict=True))
    own = [forward, backward, max(0.0, whole - forward - backward)]
    slowest: list[list[float]] = gather_json(comm, own, "hvdtrain.plan.times")
    return StepTimes(len(batch.ids), *max(slowest, key=sum))


def _layers(setup: RunSetup, comm: Communicator, batch: LoadedBatch, whole: StepTimes, half: StepTimes) -> list[Layers]:
    """The layers' shares of the times that a record takes in the whole model. Collective."""
    records = whole.records - half.records
    forward = max(0.0, (whole.forward - half.forward) / records) if records else whole.forward / whole.records
    backward = max(0.0, (whole.backward - half.backward) / records) if records else whole.backward / whole.records
    found = agree(
        comm,
        lambda: time_layers(setup.task, setup.config, batch.features) if comm.topology.is_root else None,
        "hvdtrain.plan.layers",
    )
    told: list[list[float]] = broadcast_json(comm, found, "hvdtrain.plan.layers.told")
    sums = np.maximum(np.array(told).sum(0), 1e-12)
    return [
        Layers(
            forward * own[0] / sums[0],
            backward * own[1] / sums[1],
            own[2],
            own[3] / len(batch.ids),
            own[4] / len(batch.ids),
        )
        for own in told
    ]


@dataclass(frozen=True)
class Links:
    """Between this job's workers.

    Attributes:
        ring: of Horovod's allreduce.
        passing: from a stage to the next one; None: not measured.
    """

    ring: LinkModel
    passing: LinkModel | None


def measured_links(setup: RunSetup, comm: Communicator, operation: Any, seconds: float) -> Links:
    """Fitted to times of allreduces, and of messages between ranks 0 and 1. Collective; of two workers or more."""
    report = measure_allreduces(comm, operation, setup.task.framework, _RING_SIZES, seconds)
    ring = fit_ring(comm.topology.size, {point["bytes"]: point["seconds"] for point in report["sizes"]})
    return Links(LinkModel(ring.latency, ring.bandwidth), _passing(setup, comm))


def _passing(setup: RunSetup, comm: Communicator) -> LinkModel | None:
    if setup.task.framework != "torch" or comm.topology.size % 2:
        return None
    times = time_message(comm.topology, setup.config, _MESSAGE_SIZES)
    told: list[list[float]] = gather_json(comm, times, "hvdtrain.plan.messages")
    slope, latency = np.polyfit(_MESSAGE_SIZES, told[0], 1, w=1 / np.array(told[0])).tolist()
    return LinkModel(max(latency, 1e-7), 1 / max(slope, 1e-13))
