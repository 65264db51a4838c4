"""A model in stages, of which this process has one, or all on several devices, under the names of the whole model."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain as chained
from typing import Any

import numpy as np
import torch
from torch import nn

from hvdtrain.adapters.choose_sync import choose_sync
from hvdtrain.adapters.gathered_state import StageState
from hvdtrain.adapters.measure_names import require_same_names
from hvdtrain.adapters.step_timer import StepTimer
from hvdtrain.adapters.torch.build import build_model
from hvdtrain.adapters.torch.device import device_named, own_device
from hvdtrain.adapters.torch.gradient_sync import GradientSync, NoSync, summed_gradients, trainable_of
from hvdtrain.adapters.torch.optimizers import optimizer_of
from hvdtrain.adapters.torch.passes import Draws, Measurement
from hvdtrain.adapters.torch.pipeline.chain import Chain, chain_of
from hvdtrain.adapters.torch.pipeline.stage_boundaries import local_ends, rank_ends
from hvdtrain.adapters.torch.pipeline.staged_passes import PipelinePasses, Stage
from hvdtrain.adapters.torch.state import drifting_buffers, require_own_parameters
from hvdtrain.adapters.torch.update import Update
from hvdtrain.algorithms.pipeline_schedule import SCHEDULES, Pass, slots
from hvdtrain.comm.communicator import HorovodCommunicator
from hvdtrain.comm.messages import gather_json
from hvdtrain.comm.peer_failure import waits_for_peers
from hvdtrain.comm.process_sets import process_set_of
from hvdtrain.comm.torch_binding import TorchBinding
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.named_arrays import State
from hvdtrain.task.task import Task
from hvdtrain.topology import Topology
from hvdtrain.topology.topology import Grid


class Stages:
    """A model in stages, the optimizer of those that are here, and how gradients are exchanged.

    The whole model is built on the host, and its optimizer, so that a task may treat its layers as it likes.

    Args: `cuts`: the first link of each stage but the first one.

    Attributes:
        optimizer: of this process's weights.
        gradient_sync: with the ranks that have the same stage.
        state: what other ranks have of the model; None: nothing.

    Raises `UsageError`: there is no such device.
    """

    def __init__(
        self, task: Task, topology: Topology, options: TrainingOptions, cuts: Sequence[int], lr: float
    ) -> None:
        parallel = options.parallel
        grid = self.grid = Grid(topology, parallel.stages_of_workers)
        model = build_model(task, options, torch.device("cpu"), is_distributed=grid.replicas > 1)
        self.optimizer: torch.optim.Optimizer = optimizer_of(task, model, lr, options)
        require_own_parameters(model, self.optimizer)
        devices = [device_named(name) for name in parallel.device_names] or [own_device()]
        stage = grid.stage if parallel.is_pipeline else None
        staged = self.staged = keep_stages(chain_of(task, model), cuts, stage, devices)
        local = {id(parameter) for parameter in staged.model.parameters()}
        for group in self.optimizer.param_groups:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) in local]
        keep_state_of(local, self.optimizer)
        trainable = trainable_of(staged.model)
        if grid.replicas == 1:
            self.gradient_sync: GradientSync = NoSync(trainable)
        else:
            chosen = choose_sync(options, topology, process_set_of(grid.stage_ranks))
            self.gradient_sync = summed_gradients(trainable, chosen)
        self.state = None if stage is None else StageState(staged.others, staged.drifting, grid)

    def passes(
        self, task: Task, options: TrainingOptions, seed: int, update: Update, timer: StepTimer, waiting: float
    ) -> PipelinePasses:
        """What runs the stages. Args: `waiting`: the most seconds for a message. Collective."""
        parallel, grid = options.parallel, self.grid
        devices = [next(module.parameters()).device for module in self.staged.modules]
        ends = local_ends(devices) if parallel.devices else [rank_ends(grid, parallel, devices[0], waiting)]
        stages = []
        for number, module in enumerate(self.staged.modules):
            device, (before, after) = devices[number], ends[number]
            draws = Draws.on(device, seed, grid.topology.rank * len(devices) + number)
            measuring = Draws.on(device, seed, grid.data_topology().rank)
            measurement = Measurement(task, options.precision, device)
            stages.append(Stage(module, draws, measuring, measurement, before, after, timer))
        schedule = SCHEDULES[parallel.schedule]

        def order(count: int) -> Iterator[tuple[int, Pass]]:
            if parallel.devices:
                return chained.from_iterable(slots(schedule, parallel.stages, count))
            return ((0, step) for step in schedule(grid.stage, grid.stages, count))

        names = _names_on_all(grid.topology) if parallel.is_pipeline else None
        return PipelinePasses(stages, order, int(parallel.micro_batches), self.gradient_sync, update, names)

    def total_norm(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """The norm of the gradients of all stages, given those of this one."""
        if self.state is None:
            return self.gradient_sync.total_norm(gradients)
        import horovod.torch as hvd

        local = self.gradient_sync.total_norm(gradients) if gradients else torch.zeros(())
        with waits_for_peers():
            squares = local.double().square()
            total: torch.Tensor = hvd.allreduce(squares, op=hvd.Sum, name="hvdtrain.gradients.norm")
        return (total / self.grid.replicas).sqrt().float()


def _names_on_all(topology: Topology) -> Callable[[Sequence[str]], Sequence[str]]:
    """The last stages have measured; others learn from them what."""
    comm: Any = HorovodCommunicator(TorchBinding(), topology)

    def names(local: Sequence[str]) -> Sequence[str]:
        by_rank: list[list[str]] = gather_json(comm, list(local), "hvdtrain.pipeline.measures")
        require_same_names(by_rank)
        return list(dict.fromkeys(name for names in by_rank for name in names))

    return names


@dataclass(frozen=True)
class StagedModel:
    """What is left of a model here."""

    model: nn.Module  # with the weights and buffers of this process's stages only; names are unchanged
    modules: Sequence[nn.Module]  # the stages of this process, each on its device
    others: frozenset[str]  # names of weights, buffers and extra states that other processes alone have
    drifting: State  # zeros in the shapes of all buffers whose mean over ranks replaces them, float64 or complex128
    parameters: int  # trainable ones of the whole model


def keep_stages(chain: Chain, cuts: Sequence[int], stage: int | None, devices: Sequence[torch.device]) -> StagedModel:
    """Cut the model, keep what belongs here, and move it to its devices. The model itself is changed.

    Args:
        cuts: the first link of each stage but the first one.
        stage: the stage of this process; None: all.
    """
    model = chain.model
    ends = [*cuts, len(chain.names)]
    stages = list(zip([0, *cuts], ends, strict=True))
    kept = stages if stage is None else stages[stage : stage + 1]
    parts = [chain.part(first, end) for first, end in kept]
    names = _names_in(model)
    averaged = {name: array for name, array in drifting_buffers(model).items() if array.dtype.kind in "fc"}
    drifting = {name: np.zeros_like(array, np.result_type(array, np.float64)) for name, array in averaged.items()}
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if stage is not None:
        _drop_others(model, chain, *kept[0])
    for part, device in zip(parts, devices, strict=True):
        part.to(device)
        _share_buffers(model, part)
    if stage is not None:
        model.to(devices[0])
    return StagedModel(model, parts, names - _names_in(model), drifting, parameters)


def _names_in(model: nn.Module) -> frozenset[str]:
    """All names of weights, buffers and extra states; one that several layers share has several."""
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return frozenset(name for name, _ in named) | model.state_dict().keys()


def _drop_others(model: nn.Module, chain: Chain, first: int, end: int) -> None:
    """Weights and buffers of other stages, and layers that only have such; what no stage uses stays with the first one.

    A layer is taken out, too, because BatchNorm without its buffers could not load a state.
    """
    others = frozenset[int]().union(*chain.tensors[:first], *chain.tensors[end:])
    used = others.union(*chain.tensors[first:end])

    def is_other(tensor: torch.Tensor) -> bool:
        return id(tensor) in others or (first > 0 and id(tensor) not in used)

    layers = dict(model.named_modules(remove_duplicate=False))
    for path, module in layers.items():
        outer, _, last = path.rpartition(".")
        tensors = [*module.parameters(), *module.buffers()]
        if path and tensors and all(map(is_other, tensors)):
            layers[outer]._modules[last] = None
            continue
        for named in (module._parameters, module._buffers):
            named_tensors: dict[str, torch.Tensor | None] = named
            named_tensors |= {n: None for n, tensor in named_tensors.items() if tensor is not None and is_other(tensor)}


def _share_buffers(model: nn.Module, part: nn.Module) -> None:
    """A buffer that the part has for itself, because forward() uses it without a layer, is the model's too."""
    known = dict(model.named_buffers())
    for name, buffer in part.named_buffers():
        if name in known and known[name] is not buffer:
            outer, _, last = name.rpartition(".")
            model.get_submodule(outer)._buffers[last] = buffer


def keep_state_of(local: Collection[int], optimizer: torch.optim.Optimizer) -> None:
    """Of the parameters with these ids only, and where they are now: Adagrad has state from the beginning."""
    for parameter in list(optimizer.state):
        if id(parameter) not in local:
            del optimizer.state[parameter]
            continue
        for name, value in optimizer.state[parameter].items():
            if isinstance(value, torch.Tensor) and name != "step":
                optimizer.state[parameter][name] = value.to(parameter.device)
