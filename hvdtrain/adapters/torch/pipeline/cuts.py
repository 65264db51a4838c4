"""Where a model is cut: at the layers that are named, or where the measured times of the stages are most equal."""

import difflib
import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray

from hvdtrain.adapters.torch.build import build_model
from hvdtrain.adapters.torch.device import device_named, own_device
from hvdtrain.adapters.torch.pipeline.chain import Chain, chain_of
from hvdtrain.adapters.torch.pipeline.layer_times import link_times, require_divisible
from hvdtrain.algorithms.chain_cuts import LinkCost, balanced_cuts
from hvdtrain.algorithms.pipeline_schedule import micro_batches_in_flight
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.errors import UsageError
from hvdtrain.task.task import Task

_COPIES_OF_WEIGHTS = 4  # weights, gradients, two of an optimizer such as Adam


def chosen_cuts(
    task: Task,
    options: TrainingOptions,
    features: dict[str, NDArray[Any]],
    micro_batches: int,
    host_bytes: float = math.inf,
) -> tuple[list[int], list[str]]:
    """The cuts that `options` name, or the best ones by measurement, and a line about each stage, for people.

    The model is built for this, and dropped. A cut is the first link of a stage, for each stage but the first one.

    Args:
        features: of one micro batch, as `decode` makes them.
        host_bytes: memory that each stage may take on a CPU. A GPU says itself how much it has.

    Raises `UsageError`: the model cannot be cut so.
    """
    parallel = options.parallel
    device = [*map(device_named, parallel.device_names), own_device()][0]
    model = build_model(task, options, torch.device("cpu"))  # whole, it may not fit on a device
    chain = chain_of(task, model)
    _require_enough(chain, parallel.stages)
    if parallel.cuts:
        if device.type == "cpu":  # else the host would compute for long what is made for a GPU
            require_divisible(task, chain, options.precision, features)
        starts = [_link_named(name, chain) for name in parallel.cut_names]
        _require_stages(starts, chain, parallel.cut_names)
        costs = None
    else:
        costs = [
            LinkCost(link.forward + link.backward, _COPIES_OF_WEIGHTS * link.weights, link.weights > 0, link.kept)
            for link in link_times(task, chain, options.precision, features, device)
        ]
        _require_enough(chain, parallel.stages)
        in_flight = partial(micro_batches_in_flight, parallel.schedule, parallel.stages, micro_batches)
        on_cpu = device.type == "cpu"
        most = host_bytes if on_cpu else torch.cuda.get_device_properties(device).total_memory
        balanced = balanced_cuts(costs, parallel.stages, most, in_flight)
        if balanced is None and on_cpu:  # an optimizer with less state than Adam's may fit, or pages be swapped
            balanced = balanced_cuts(costs, parallel.stages)
        if balanced is None:
            needed = sum(cost.nbytes + in_flight(0) * cost.kept for cost in costs)
            raise _does_not_fit(needed, parallel.stages, most)
        starts = [chain.places[number] for number in balanced]
    return starts, _told(chain, starts, costs)


def _require_enough(chain: Chain, stages: int) -> None:
    """Raise UsageError unless each stage can have weights that are trained."""
    trained = sum(any(map(chain.trained, range(place, chain.end_of(place)))) for place in chain.places)
    if trained < stages:
        parts = f"{trained} part{'s' * (trained != 1)}"
        fewer = f"give --parallel.stages {trained} or less" if trained > 1 else "leave --parallel.stages out"
        raise UsageError(
            f"The model {type(chain.model).__name__} can be cut into {parts} with weights that are trained, and "
            f"--parallel.stages is {stages}.",
            f"Each stage trains something. {_places(chain)}",
            f"{fewer}, or list smaller parts in the task's stages().",
        )


def _link_named(name: str, chain: Chain) -> int:
    """The link whose first layer is `name`, or is inside of it."""
    names = {place: chain.names[place] for place in chain.places[1:]}
    for place, known in names.items():
        if known == name or known.startswith(f"{name}."):
            return place
    near = difflib.get_close_matches(name, names.values(), 3, 0.4)
    raise UsageError(
        f"--parallel.cuts names {name!r}, at which the model {type(chain.model).__name__} cannot be cut.",
        _places(chain),
        f"did you mean {' or '.join(near)}?" if near else "choose some of these names, or leave --parallel.cuts out.",
    )


def _divides(chain: Chain, place: int) -> bool:
    """Whether something is trained on both sides."""
    sides = range(place), range(place, len(chain.names))
    return all(any(map(chain.trained, side)) for side in sides)


def _places(chain: Chain) -> str:
    names = [chain.names[place] for place in chain.places[1:] if _divides(chain, place)]
    shown = ", ".join(names[:12]) + (f", … ({len(names)} in all)" if len(names) > 12 else "")
    return f"Stages can begin at {shown}." if names else "It is one block, with no place between two layers."


def _require_stages(starts: Sequence[int], chain: Chain, names: Sequence[str]) -> None:
    ends = [0, *starts, len(chain.names)]
    for first, end in zip(ends, ends[1:], strict=False):
        if first >= end or not any(chain.trained(link) for link in range(first, end)):
            raise UsageError(
                f"--parallel.cuts {','.join(names)} leaves a stage without weights that are trained.",
                f"Each stage trains something, and stages follow the order of the layers. {_places(chain)}",
                "choose other names, or leave --parallel.cuts out.",
            )


def _does_not_fit(needed: float, stages: int, most: float) -> UsageError:
    return UsageError(
        f"No division into {stages} stages fits: the whole model needs about {needed / 2**30:.1f} GiB in training, and "
        f"a device has {most / 2**30:.1f} GiB.",
        "At least one stage would need more than its device has.",
        "use more stages, a smaller batch or more micro batches, or --activation-checkpointing.",
    )


def _told(chain: Chain, starts: Sequence[int], costs: Sequence[LinkCost] | None) -> list[str]:
    lines = []
    for stage, (first, end) in enumerate(zip([0, *starts], [*starts, len(chain.names)], strict=True)):
        weights = sum(p.numel() for link in range(first, end) for p in chain.trained(link))
        span = chain.names[first] if end == first + 1 else f"{chain.names[first]} to {chain.names[end - 1]}"
        of_stage = [] if costs is None else costs[bisect_left(chain.places, first) : bisect_left(chain.places, end)]
        took = f", {1e3 * sum(cost.seconds for cost in of_stage):.3g} ms a micro batch" if of_stage else ""
        lines.append(f"stage {stage}: {span}: {weights:,} parameters{took}")
    return lines


def times_of_chain(task: Task, options: TrainingOptions, features: dict[str, NDArray[Any]]) -> list[list[float]]:
    """Measure each link of the model's chain: seconds forward and backward, bytes of weights, kept and passed on.

    One row of ones for a model that cannot be cut.
    """
    device = own_device()
    model = build_model(task, options, torch.device("cpu"))
    try:
        chain = chain_of(task, model)
        links = link_times(task, chain, options.precision, features, device)
    except UsageError:
        return [[1.0, 1.0, 0.0, 0.0, 0.0]]
    return [[link.forward, link.backward, link.weights, link.kept, link.leaving] for link in links]
