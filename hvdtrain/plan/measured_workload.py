"""What the formulas take from the model: times and bytes of its parts on this job's workers."""

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from data_sharding import LoadedBatch
from hvdtrain.adapters.choose_sync import BUCKET_BYTES
from hvdtrain.adapters.sync_state import LARGE_BYTES
from hvdtrain.algorithms.micro_batches import micro_batches
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import agree, gather_json
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.plan.cost_model import Layers, Workload
from hvdtrain.run.prepare import RunSetup, fixed_batch, seconds_of_step
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


def undivided(config: TrainConfig) -> TrainConfig:
    """The same training, where each worker has all of the model."""
    return replace(config, parallel=ParallelOptions(), shard="none")


def measured_workload(
    setup: RunSetup, comm: Communicator, seconds: float, beside: Beside | None, memory: float
) -> tuple[Workload, float, bool]:
    """Times of the model while all workers of this job compute, each alone. Collective.

    Returns what the formulas take, `WorkerSteps.exchanging`, and whether the model was measured part by part, because
    as a whole it does not fit into a worker here. Two sizes of batch are timed, because a pass takes a fixed time and a
    time for each record.

    Args:
        setup: of `undivided` training.
        seconds: about how long the measurement may take.
        beside: starts sums over all workers; None: there is one worker, or its cores do not send.
        memory: bytes that are left to a worker here.
    """
    setup = replace(setup, config=undivided(setup.config))
    batch = agree(comm, lambda: fixed_batch(setup), "hvdtrain.plan.batch")
    half = _halved(comm, batch, setup.task.smallest_slice)
    parts = _timed_parts(setup, comm, batch)
    weights, kept = sum(part.weights for part in parts), sum(part.kept for part in parts)
    # Only a model that can be cut has parts with weights.
    seconds_a_byte, slots = _timed_update(setup, comm) if weights else (0.0, 0.0)
    in_parts = (2 + slots) * weights + kept * len(batch.ids) > memory
    if bool(comm.allreduce(np.array([int(in_parts)]), "hvdtrain.plan.in_parts", "max")[0]):
        update = seconds_a_byte * weights
        halved = None if half is None else _as_steps(_timed_parts(setup, comm, half), len(half.ids), update)
        steps = WorkerSteps(_as_steps(parts, len(batch.ids), update), halved, weights, slots)
        return _workload(setup, parts, steps), 0.0, True
    steps = _measured_steps(setup, comm, batch, half, seconds / 2, beside)
    return _workload(setup, parts, steps), steps.exchanging, False


def _halved(comm: Communicator, batch: LoadedBatch, smallest: int) -> LoadedBatch | None:
    """The same on all ranks, whose batches may differ by a record; None where one of them is too small."""
    least = int(comm.allreduce(np.array([len(batch.ids)]), "hvdtrain.plan.records", "min")[0])
    return micro_batches(batch, 2)[0] if least >= 2 * smallest else None


def _timed_parts(setup: RunSetup, comm: Communicator, batch: LoadedBatch) -> list[Layers]:
    """Of the slowest worker, while all of them compute. One without weights for a model that cannot be cut."""
    times = agree(comm, lambda: _layer_times(setup, batch), "hvdtrain.plan.layers")
    gc.collect()  # a model that was traced holds itself, and the next one needs its memory
    every = gather_json(comm, [len(batch.ids), times], "hvdtrain.plan.layers.times")
    records, rows = max(every, key=lambda worker: sum(row[0] + row[1] for row in worker[1]) / worker[0])
    return [Layers(row[0] / records, row[1] / records, row[2], row[3] / records, row[4] / records) for row in rows]


def _layer_times(setup: RunSetup, batch: LoadedBatch) -> list[list[float]]:
    if setup.task.framework != "torch":
        return [[1.0, 1.0, 0.0, 0.0, 0.0]]
    from hvdtrain.adapters.torch.pipeline.cuts import times_of_chain  # imports torch

    return times_of_chain(setup.task, setup.config, batch.features)


def _timed_update(setup: RunSetup, comm: Communicator) -> tuple[float, float]:
    """For each byte of weights: seconds of an update, of the slowest worker, and bytes of the optimizer's state."""
    from hvdtrain.adapters.torch.pipeline.layer_times import update_times  # imports torch

    times = agree(comm, lambda: update_times(setup.task, setup.config, setup.schedule.peak), "hvdtrain.plan.update")
    gc.collect()
    seconds, slots = max(gather_json(comm, list(times), "hvdtrain.plan.update.times"))
    return float(seconds), float(slots)


def _as_steps(parts: list[Layers], records: int, update: float) -> StepTimes:
    """Of the whole model, whose parts were never in training at the same time."""
    forward, backward = (records * sum(getattr(part, name) for part in parts) for name in ("forward", "backward"))
    return StepTimes(records, forward, backward, update)


def _workload(setup: RunSetup, parts: list[Layers], steps: WorkerSteps) -> Workload:
    size = float(setup.config.global_batch_size or 1)
    layers, smallest = _layers(parts, steps), setup.task.smallest_slice
    whole, half = steps.whole, steps.half
    # What is left of the two passes at a batch of no records.
    fixed = 0.0 if half is None else max(0.0, 2 * (half.forward + half.backward) - (whole.forward + whole.backward))
    return Workload(layers, size, fixed, whole.update, steps.slots, float(BUCKET_BYTES), smallest)


def _layers(parts: list[Layers], steps: WorkerSteps) -> list[Layers]:
    """The parts' shares of the times that a record takes in the whole model."""
    whole, half = steps.whole, steps.half
    less = half or StepTimes(0, 0.0, 0.0, 0.0)
    records = whole.records - less.records
    forward = max(0.0, (whole.forward - less.forward) / records)
    backward = max(0.0, (whole.backward - less.backward) / records)
    sums = np.maximum([sum(part.forward for part in parts), sum(part.backward for part in parts)], 1e-12).tolist()
    layers = [
        replace(part, forward=forward * part.forward / sums[0], backward=backward * part.backward / sums[1])
        for part in parts
    ]
    if not any(layer.weights for layer in layers):  # a model that cannot be cut
        layers = [replace(layers[0], weights=steps.trained)]
    return layers


def _measured_steps(
    setup: RunSetup,
    comm: Communicator,
    batch: LoadedBatch,
    half: LoadedBatch | None,
    seconds: float,
    beside: Beside | None,
) -> WorkerSteps:
    """Real steps of the whole model on each worker; each of the measurements takes about `seconds`. Collective."""
    alone, peak = Topology.single(), setup.schedule.peak
    config = replace(setup.config, virtual_workers=None, check_workers=None)
    adapter = agree(comm, lambda: open_adapter(setup.task, alone, config.seed, peak, config), "hvdtrain.plan.adapter")
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
    """The median step of the slowest worker. All compute at the same time, as they do in training."""
    seconds_of_step(adapter, batch, range(_WARM_UP))
    comm.barrier("hvdtrain.plan.ready")
    took = np.array([seconds_of_step(adapter, batch, [_WARM_UP])])
    first_step = float(comm.allreduce(took, "hvdtrain.plan.one", "max")[0])
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
