"""What the formulas are given of the model: times and bytes of its parts on this job's workers."""

import gc
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from data_sharding import LoadedBatch
from hvdtrain.adapters.gradient_sync import BUCKET_BYTES
from hvdtrain.adapters.open import time_layers, time_update
from hvdtrain.algorithms.cost_model import Layers, Workload
from hvdtrain.algorithms.micro_batches import micro_batches
from hvdtrain.comm.interface import Communicator
from hvdtrain.comm.messages import agree, gather_json
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.run.fixed_batch import fixed_batch
from hvdtrain.run.planning.step_times import Beside, StepTimes, WorkerSteps, measured_steps
from hvdtrain.run.prepare import RunSetup

_COPIES_OF_WEIGHTS: Final = 4
"""Weights, gradients, and two of an optimizer such as Adam: what the whole model is expected to need."""


@dataclass(frozen=True)
class Part:
    """One link of the model's chain, with a batch.

    Attributes:
        forward, backward: seconds.
        weights, kept, leaving: bytes, see `Layers`.
    """

    forward: float
    backward: float
    weights: float
    kept: float
    leaving: float


@dataclass(frozen=True)
class Measured:
    """What is trained.

    Attributes:
        work: for the formulas.
        exchanging: see `WorkerSteps`.
        in_parts: whether the model was measured part by part, because it would not fit into a worker as a whole.
    """

    work: Workload
    exchanging: float
    in_parts: bool


def undivided(config: TrainConfig) -> TrainConfig:
    """The same training, where each worker has all of the model."""
    return replace(config, parallel=ParallelOptions(), shard="none")


def measured_workload(
    setup: RunSetup, comm: Communicator, seconds: float, beside: Beside | None, memory: float
) -> Measured:
    """Times of the model while all workers of this job compute, each alone. Collective.

    Two sizes of batch are timed, because a pass takes a fixed time and a time for each record.

    Args:
        setup: of `undivided` training.
        seconds: about how long the measurement may take.
        beside: starts sums over all workers; None: there is one worker, or its cores do not send.
        memory: bytes that are left to a worker here; the same on all ranks.
    """
    setup = replace(setup, config=undivided(setup.config))
    batch = agree(comm, lambda: fixed_batch(setup), "hvdtrain.plan.batch")
    smallest = setup.task.smallest_slice
    half = micro_batches(batch, 2)[0] if len(batch.ids) >= 2 * smallest else None
    parts = _timed_parts(setup, comm, batch)
    in_parts = _COPIES_OF_WEIGHTS * sum(one.weights for one in parts) + sum(one.kept for one in parts) > memory
    if in_parts:
        steps = _steps_in_parts(setup, comm, batch, parts, half)
    else:
        steps = measured_steps(setup, comm, batch, half, seconds / 2, beside)
    size = float(setup.config.global_batch_size or 1)
    layers, fixed = _layers(parts, steps), _fixed(steps)
    work = Workload(layers, size, fixed, steps.whole.update, steps.slots, float(BUCKET_BYTES), smallest)
    return Measured(work, steps.exchanging, in_parts)


def _timed_parts(setup: RunSetup, comm: Communicator, batch: LoadedBatch) -> list[Part]:
    """Of the slowest worker, while all of them compute. One without weights for a model that cannot be cut."""
    own = agree(comm, lambda: time_layers(setup.task, setup.config, batch.features), "hvdtrain.plan.layers")
    gc.collect()  # a model that was traced holds itself, and the next one needs its memory
    every: list[list[list[float]]] = gather_json(comm, own, "hvdtrain.plan.layers.times")
    return [Part(*row) for row in max(every, key=lambda rows: sum(row[0] + row[1] for row in rows))]


def _steps_in_parts(
    setup: RunSetup, comm: Communicator, batch: LoadedBatch, parts: list[Part], half: LoadedBatch | None
) -> WorkerSteps:
    """As `measured_steps`, where the model's parts are never in training at the same time."""
    own = agree(comm, lambda: time_update(setup.task, setup.config, setup.schedule.peak), "hvdtrain.plan.update")
    every: list[list[float]] = gather_json(comm, list(own), "hvdtrain.plan.update.times")
    seconds, slots = max(every)
    trained = sum(one.weights for one in parts)

    def added(timed: list[Part], records: int) -> StepTimes:
        forward, backward = (sum(getattr(one, name) for one in timed) for name in ("forward", "backward"))
        return StepTimes(records, forward, backward, seconds * trained)

    halved = None if half is None else added(_timed_parts(setup, comm, half), len(half.ids))
    return WorkerSteps(added(parts, len(batch.ids)), halved, trained, slots)


def _fixed(steps: WorkerSteps) -> float:
    """What is left of the two passes at a batch of no records."""
    whole, half = steps.whole, steps.half
    return 0.0 if half is None else max(0.0, 2 * (half.forward + half.backward) - (whole.forward + whole.backward))


def _layers(parts: list[Part], steps: WorkerSteps) -> list[Layers]:
    """The parts' shares of the times that a record takes in the whole model."""
    whole, half = steps.whole, steps.half
    less = half or StepTimes(0, 0.0, 0.0, 0.0)
    records = whole.records - less.records
    forward = max(0.0, (whole.forward - less.forward) / records)
    backward = max(0.0, (whole.backward - less.backward) / records)
    sums = np.maximum([sum(one.forward for one in parts), sum(one.backward for one in parts)], 1e-12).tolist()
    layers = [
        Layers(
            forward * one.forward / sums[0],
            backward * one.backward / sums[1],
            one.weights,
            one.kept / whole.records,
            one.leaving / whole.records,
        )
        for one in parts
    ]
    if not any(layer.weights for layer in layers):  # a model that cannot be cut
        layers = [replace(layers[0], weights=steps.trained)]
    return layers
