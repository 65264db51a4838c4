"""The parts of a `TorchAdapter` whose model is divided into stages."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hvdtrain.adapters.choose_sync import choose_sync
from hvdtrain.adapters.gathered_state import StageState
from hvdtrain.adapters.measure_names import require_same_names
from hvdtrain.adapters.step_timer import StepTimer
from hvdtrain.adapters.torch.build import build_model
from hvdtrain.adapters.torch.device import device_named, own_device
from hvdtrain.adapters.torch.gradient_sync import GradientSync, NoSync, summed_gradients, trainable_of
from hvdtrain.adapters.torch.passes import Draws, Measurement
from hvdtrain.adapters.torch.pipeline.chain import chain_of
from hvdtrain.adapters.torch.pipeline.stage_boundaries import HorovodLink, Link, LocalLink, MpiLink
from hvdtrain.adapters.torch.pipeline.staged_model import StagedModel, keep_stages
from hvdtrain.adapters.torch.pipeline.staged_passes import PipelinePasses, Stage
from hvdtrain.adapters.torch.state import require_own_parameters
from hvdtrain.adapters.torch.update import Update
from hvdtrain.algorithms.pipeline_schedule import SCHEDULES, Pass, in_slots
from hvdtrain.comm.communicator import HorovodCommunicator
from hvdtrain.comm.messages import gather_json
from hvdtrain.comm.process_sets import mpi_world, process_set_of
from hvdtrain.comm.torch_binding import TorchBinding
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.task.task import Task
from hvdtrain.topology import Topology
from hvdtrain.topology.topology import Grid

BuildOptimizer = Callable[[torch.nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True)
class Stages:
    """A model in stages, the optimizer of those that are here, and how gradients are exchanged."""

    grid: Grid
    staged: StagedModel
    optimizer: torch.optim.Optimizer  # of this process's weights
    gradient_sync: GradientSync  # with the ranks that have the same stage
    state: StageState | None  # what other ranks have of the model; None: nothing

    def passes(
        self, task: Task, options: TrainingOptions, seed: int, update: Update, timer: StepTimer, waiting: float
    ) -> PipelinePasses:
        """What runs the stages. Args: `waiting`: the most seconds for a message. Collective."""
        parallel, grid = options.parallel, self.grid
        devices = [_device_of(module) for module in self.staged.modules]
        ends = _local_ends(devices) if parallel.devices else [_rank_ends(grid, parallel, devices[0], waiting)]
        stages = []
        for number, module in enumerate(self.staged.modules):
            device, (before, after) = devices[number], ends[number]
            draws = Draws.on(device, seed, grid.topology.rank * len(devices) + number)
            measuring = Draws.on(device, seed, grid.data_topology().rank)
            measurement = Measurement(task, options.precision, device)
            stages.append(
                Stage(task, module, device, options.precision, draws, measuring, measurement, before, after, timer)
            )
        schedule = SCHEDULES[parallel.schedule]

        def order(count: int) -> Iterator[tuple[int, Pass]]:
            if parallel.devices:
                return in_slots(schedule, parallel.stages, count)
            return ((0, step) for step in schedule(grid.stage, grid.stages, count))

        names = _names_on_all(grid.topology) if parallel.is_pipeline else None
        return PipelinePasses(stages, order, int(parallel.micro_batches), self.gradient_sync, update, names)

    def total_norm(self, waiting: Callable[[], AbstractContextManager[object]]) -> Callable[..., torch.Tensor]:
        """The norm of the gradients of all stages, given those of this one. Args: `waiting`: for ranks."""
        if self.state is None:
            return self.gradient_sync.total_norm
        return partial(self._norm_of_all, waiting)

    def _norm_of_all(
        self, waiting: Callable[[], AbstractContextManager[object]], gradients: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        import horovod.torch as hvd

        local = self.gradient_sync.total_norm(gradients) if gradients else torch.zeros(())
        with waiting():
            squares = local.double().square()
            total: torch.Tensor = hvd.allreduce(squares, op=hvd.Sum, name="hvdtrain.gradients.norm")
        return (total / self.grid.replicas).sqrt().float()


def open_stages(
    task: Task, topology: Topology, options: TrainingOptions, cuts: Sequence[int], build_optimizer: BuildOptimizer
) -> Stages:
    """Build the whole model on the host, and keep the stages of this process.

    Args:
        cuts: the first link of each stage but the first one.
        build_optimizer: of the whole model, so that a task may treat its layers as it likes.

    Raises `UsageError`: there is no such device.
    """
    parallel = options.parallel
    grid = Grid(topology, parallel.stages_of_workers)
    model = build_model(task, options, torch.device("cpu"))
    optimizer = build_optimizer(model)
    require_own_parameters(model, optimizer)
    devices = [device_named(name) for name in parallel.device_names] or [own_device()]
    staged = keep_stages(chain_of(task, model), cuts, grid.stage if parallel.is_pipeline else None, devices)
    local = {id(parameter) for parameter in staged.model.parameters()}
    for group in optimizer.param_groups:
        group["params"] = [parameter for parameter in group["params"] if id(parameter) in local]
    sync = _gradient_sync(staged, grid, options)
    state = StageState(staged.names, staged.own_names, grid) if parallel.is_pipeline else None
    return Stages(grid, staged, optimizer, sync, state)


def _gradient_sync(staged: StagedModel, grid: Grid, options: TrainingOptions) -> GradientSync:
    trainable = trainable_of(staged.model)
    if grid.replicas == 1:
        return NoSync(trainable)
    return summed_gradients(trainable, choose_sync(options, grid.topology, process_set_of(grid.stage_ranks)))


def _device_of(module: torch.nn.Module) -> torch.device:
    return next(module.parameters()).device


Ends = tuple[Link | None, Link | None]
"""Of a stage: what leads to the stage before, and to the next one."""


def _local_ends(devices: Sequence[torch.device]) -> list[Ends]:
    pairs = [LocalLink.pair(first, second) for first, second in zip(devices, devices[1:], strict=False)]
    befores: list[Link | None] = [None, *(second for _, second in pairs)]
    afters: list[Link | None] = [*(first for first, _ in pairs), None]
    return list(zip(befores, afters, strict=True))


def _rank_ends(grid: Grid, parallel: ParallelOptions, device: torch.device, limit: float) -> Ends:
    import horovod.torch as hvd

    rank, world = grid.topology.rank, mpi_world(parallel)
    if world is not None:

        def link(other: int) -> Link:
            return MpiLink(world, rank, other, device, limit)
    else:

        def link(other: int) -> Link:
            return HorovodLink(hvd, process_set_of(sorted((rank, other))), rank, other, device)

    return link(rank - 1) if grid.stage else None, None if grid.is_last else link(rank + 1)


def _names_on_all(topology: Topology) -> Callable[[Sequence[str]], Sequence[str]]:
    """The last stages have measured; others learn from them what."""
    comm: Any = HorovodCommunicator(TorchBinding(), topology)

    def names(local: Sequence[str]) -> Sequence[str]:
        by_rank: list[list[str]] = gather_json(comm, list(local), "hvdtrain.pipeline.measures")
        require_same_names(by_rank)
        return list(dict.fromkeys(name for names in by_rank for name in names))

    return names


def times_of_messages(topology: Topology, parallel: ParallelOptions, sizes: Sequence[int]) -> list[float]:
    """Seconds in which a message of each size gets from a rank to its neighbour, as between stages. Collective.

    Half of the time until a message has come back, the median of several.

    Args: `topology`: of an even number of workers, whose process sets have been formed; `sizes`: bytes, multiples of 4.
    """
    before, after = _rank_ends(Grid(topology, 2), parallel, torch.device("cpu"), _MESSAGE_SECONDS)
    times = []
    for size in sizes:
        tensor, halves = torch.zeros(size // 4), []
        for _ in range(_MESSAGES):
            begin = time.perf_counter()
            if after is not None:
                after.send(tensor)
                after.receive()
            elif before is not None:
                before.send(before.receive())
            halves.append((time.perf_counter() - begin) / 2)
        times.append(statistics.median(halves))
    for link in filter(None, (before, after)):
        link.flush()
    return times


_MESSAGES, _MESSAGE_SECONDS = 15, 60.0
