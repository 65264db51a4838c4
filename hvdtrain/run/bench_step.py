"""How fast training steps are, by the protocol of Horovod's synthetic benchmark, through `Adapter.train_step` itself.

The protocol is that of Horovod's examples/pytorch/pytorch_synthetic_benchmark.py (v0.28.1): the same batch again and
again, some batches to warm up, then iterations of some batches each, whose mean speed is shown with 1.96 standard
deviations. Each worker counts its own time, and rank 0's is shown, times the number of workers.
"""

import inspect
import math
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import Adapter
from hvdtrain.adapters.chosen_framework import device_kind
from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.messages import agree, gather_json
from hvdtrain.config.option import changed_options
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.run.prepare import RunSetup, fixed_batch
from hvdtrain.run.start import open_own_adapter, restore_and_broadcast
from hvdtrain.run.tuning.choice import tune
from hvdtrain.version import versions

FORMAT = 1  # version of the report; keys are only ever added

_EPOCHS_OF_A_LONG_RUN = 10**6


@dataclass(frozen=True)
class Protocol:
    """How much is measured; the defaults are Horovod's. Steps of `warmup_batches` do not count: they compile, choose
    kernels, connect. Each of `iters` times `batches_per_iter` steps together."""

    warmup_batches: int = 10
    batches_per_iter: int = 10
    iters: int = 10


class _Iteration(NamedTuple):
    """Of one worker."""

    seconds: float  # until the device had done the last step
    allreduce: float  # of these, waiting for gradients of other ranks
    loss: float  # sum of the losses of its own records
    skipped: int  # updates that were left out, as their scaled gradients were not finite


def measure(setup: RunSetup, comm: Communicator, protocol: Protocol, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure the task's first batch, and return the report, as JSON holds it, the same on all ranks. Collective.
    `tell`: receives each line of what Horovod's script prints; rank 0's is enough."""
    batch = agree(comm, lambda: fixed_batch(setup), "hvdtrain.bench.batch")
    adapter = open_own_adapter(setup, comm)
    restore_and_broadcast(setup, adapter, None, comm)
    # With so many steps left that a measurement before them may take as long as it ever does.
    endless = replace(setup, config=replace(setup.config, max_steps=None, max_time=None), epochs=_EPOCHS_OF_A_LONG_RUN)
    tuned = tune(endless, adapter, comm, 0, {}, tell=tell)
    unit = "img" if "image" in batch.features else "record"
    device = device_kind(setup.task.framework)
    tell(f"Model: {_model(setup)}")
    tell(f"Batch size: {len(batch.ids)}")
    tell(f"Number of {device}s: {comm.topology.size}")

    def tell_speed(number: int, iteration: _Iteration) -> None:
        tell(f"Iter #{number}: {_speed(batch, protocol, iteration):.1f} {unit}/sec per {device}")

    def train(steps: range) -> None:
        for first in steps[:: setup.config.steps_per_call]:
            count = min(setup.config.steps_per_call, steps.stop - first)
            adapter.train_steps([batch] * count, first, [setup.schedule.peak] * count)

    iterations = _run(adapter, train, protocol, tell_speed)
    workers = [
        [_Iteration(*values) for values in worker]
        for worker in gather_json(comm, [list(iteration) for iteration in iterations], "hvdtrain.bench.iterations")
    ]
    speeds = [_speed(batch, protocol, iteration) for iteration in workers[0]]
    mean, spread = float(np.mean(speeds)), 1.96 * float(np.std(speeds))
    size = setup.config.parallel.replicas_of(comm.topology.size)  # all stages of a replica have the same batch
    tell(f"{unit.capitalize()}/sec per {device}: {mean:.1f} +-{spread:.1f}")
    tell(f"Total {unit}/sec on {comm.topology.size} {device}(s): {size * mean:.1f} +-{size * spread:.1f}")
    return {
        **_about(setup, comm, protocol, batch, unit, device),
        "parameters": adapter.parameter_count(),
        "tuned": tuned,
        "per_worker": {"mean": mean, "interval": spread},
        "total": {"mean": size * mean, "interval": size * spread},
        "iterations": speeds,
        "seconds_per_step": [_per_step(protocol, worker) for worker in workers],
        "skipped_updates": sum(iteration.skipped for iteration in workers[0]),
        "loss": _last_loss(workers, protocol, batch),
    }


def _run(
    adapter: Adapter, train: Callable[[range], None], protocol: Protocol, after: Callable[[int, _Iteration], None]
) -> list[_Iteration]:
    train(range(protocol.warmup_batches))
    adapter.read_sums()
    iterations = []
    for number in range(protocol.iters):
        first = protocol.warmup_batches + number * protocol.batches_per_iter
        begin = time.perf_counter()
        train(range(first, first + protocol.batches_per_iter))
        sums = adapter.read_sums()  # waits for the device
        seconds = time.perf_counter() - begin
        iterations.append(_Iteration(seconds, sums.allreduce_seconds, sums.values["loss"], sums.skipped))
        after(number, iterations[-1])
    return iterations


def _speed(batch: LoadedBatch, protocol: Protocol, iteration: _Iteration) -> float:
    return len(batch.ids) * protocol.batches_per_iter / iteration.seconds


def _per_step(protocol: Protocol, worker: list[_Iteration]) -> dict[str, float]:
    """Mean seconds of one worker's step, and how they split."""
    steps = protocol.iters * protocol.batches_per_iter
    whole, waiting = (
        sum(getattr(iteration, name) for iteration in worker) / steps for name in ("seconds", "allreduce")
    )
    return {"step": whole, "allreduce": waiting, "compute": max(0.0, whole - waiting)}


def _last_loss(workers: list[list[_Iteration]], protocol: Protocol, batch: LoadedBatch) -> float | None:
    """Mean over the last iteration, all workers; None where it is not finite, which JSON cannot say."""
    total = sum(worker[-1].loss for worker in workers)
    loss = total / (protocol.batches_per_iter * batch.global_weight)
    return loss if math.isfinite(loss) else None


def _about(
    setup: RunSetup, comm: Communicator, protocol: Protocol, batch: LoadedBatch, unit: str, device: str
) -> dict[str, Any]:
    config = setup.config
    chosen = changed_options(config, TrainingOptions)
    return {
        "format": FORMAT,
        "framework": setup.task.framework,
        "task": config.task,
        "model": _model(setup),
        "unit": unit,
        "device": device,
        "workers": comm.topology.size,
        "hosts": gather_json(comm, socket.gethostname(), "hvdtrain.bench.hosts"),
        "batch_size": len(batch.ids),
        "global_batch_size": config.global_batch_size,
        "knobs": chosen,
        "protocol": asdict(protocol),
        "versions": versions(),
    }


def _model(setup: RunSetup) -> str:
    """What `--model` would name, or the task, if that has one model of its own."""
    parameter = inspect.signature(type(setup.task)).parameters.get("model")
    default = setup.config.task if parameter is None else parameter.default
    return str(setup.about["task_args"].get("model", default))
