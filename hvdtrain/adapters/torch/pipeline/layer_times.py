"""What each link of a chain takes for one micro batch, in time of its passes and in bytes; and what an update takes."""

import bisect
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import nn

from hvdtrain.adapters.torch.build import build_model
from hvdtrain.adapters.torch.device import low_precision, own_device
from hvdtrain.adapters.torch.optimizers import optimizer_of
from hvdtrain.adapters.torch.passes import Measurement
from hvdtrain.adapters.torch.pipeline.chain import Chain
from hvdtrain.adapters.torch.pipeline.split_call import GivenOutput, captured_input
from hvdtrain.adapters.torch.state import require_own_parameters
from hvdtrain.config.training_options import Precision, TrainingOptions
from hvdtrain.errors import UsageError
from hvdtrain.task.task import Task

_REPEATS: Final = 3  # the fastest counts: others were disturbed
_UPDATED_BYTES: Final = 8 * 2**20


@dataclass(frozen=True)
class LinkTimes:
    """What a link takes for one micro batch."""

    forward: float  # seconds
    backward: float  # seconds
    weights: int  # bytes of the weights that are trained
    kept: int  # bytes that autograd keeps between the two passes
    leaving: int  # bytes that are passed on


def link_times(
    task: Task, chain: Chain, precision: Precision, features: dict[str, NDArray[Any]], device: torch.device
) -> list[LinkTimes]:
    """Time what lies between the places of the chain, which are found by that. The model is on the host, and is
    afterwards as it was.

    Args: `device`: on which one part at a time is timed.

    Raises UsageError: a link that the task lists does not return a tensor; the links, as a task lists them, are another
    model; or `measure` needs more of the model than its output.
    """
    links = []

    def timed(part: nn.Module, entering: torch.Tensor) -> Any:
        times, leaving = _timed(part.to(device), entering, device)
        part.to("cpu")
        links.append(times)
        return leaving

    def call(entering: torch.Tensor) -> torch.Tensor:
        return _call_in_parts(chain, entering, timed, links.pop)

    _run(task, chain, precision, features, device, call)
    return links


def require_divisible(task: Task, chain: Chain, precision: Precision, features: dict[str, NDArray[Any]]) -> None:
    """What `link_times` checks and finds, without timing anything, on the host. Arguments and errors as there."""

    def call(entering: torch.Tensor) -> torch.Tensor:
        return _call_in_parts(chain, entering, lambda part, x: part(x), lambda: None)

    _run(task, chain, precision, features, torch.device("cpu"), call)


def _call_in_parts(
    chain: Chain,
    entering: torch.Tensor,
    call: Callable[[nn.Module, torch.Tensor], Any],
    forget: Callable[[], object],
) -> torch.Tensor:
    """What the last part returns. A link that returns no tensor is taken together with the next one, and called again;
    `forget` is told so."""
    place = 0
    while place < len(chain.names):
        end = chain.end_of(place)
        leaving = call(chain.part(place, end), entering)
        if isinstance(leaving, torch.Tensor):
            entering, place = leaving.detach(), end
        elif end < len(chain.names) and not chain.is_listed:
            chain.inseparable.add(end)
            forget()
        else:
            raise UsageError(
                f"A part of the model returns a {type(leaving).__name__}.",
                "What is passed from one stage to the next is one tensor.",
                "list the layers that may be parted in the task's stages(model).",
            )
    return entering


def _run(
    task: Task,
    chain: Chain,
    precision: Precision,
    features: dict[str, NDArray[Any]],
    device: torch.device,
    compute: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Give `compute` what measure() calls the model with, and measure() what it returns, without its graph."""
    placed = Measurement(task, precision, device).placed(features)
    with _unchanged(chain.model), low_precision(precision, device):
        entering = captured_input(task, placed, chain.model)
        if chain.is_listed:
            _require_same_output(chain, entering)
        leaving = compute(entering)
        with torch.no_grad():
            task.measure(GivenOutput(leaving), placed)


def _require_same_output(chain: Chain, entering: torch.Tensor) -> None:
    """The links may lack one without weights, or have another order."""
    if not all(_has_same_output(chain, entering.cpu(), training) for training in (False, True)):
        raise UsageError(
            "The layers that the task's stages() lists do not compute what its model computes.",
            "They are called one after the other, each with what the one before it has returned.",
            "return the list of all modules of the model that are called, in the order in which they are.",
        )


def _has_same_output(chain: Chain, entering: torch.Tensor, training: bool) -> bool:
    """Whether links and model return the same with the same random numbers and the same statistics."""
    model, chained = chain.model, chain.part(0, len(chain.names))
    with _unchanged(model), torch.no_grad():
        model.train(training)
        torch.manual_seed(0)
        whole = model(entering)
    with _unchanged(model), torch.no_grad():
        model.train(training)
        torch.manual_seed(0)
        try:
            listed = chained(entering)
            return listed.shape == whole.shape and torch.allclose(listed, whole, 1e-3, 1e-5, equal_nan=True)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            return False


def _timed(part: nn.Module, entering: torch.Tensor, device: torch.device) -> tuple[LinkTimes, Any]:
    """The times of a part, and what comes out of it; where that is no tensor, no time counts."""
    forward = backward = float("inf")
    leaving: Any = entering
    kept = 0
    for _ in range(_REPEATS):
        leaf = entering.detach()
        if leaf.is_floating_point():
            leaf.requires_grad_()
        begin = _now(device)
        with _counted() as saved:
            leaving = part(leaf.clone())  # which layers may work on in place
        if not isinstance(leaving, torch.Tensor):
            return LinkTimes(forward, backward, 0, 0, 0), leaving
        middle = _now(device)
        if leaving.requires_grad:
            torch.autograd.backward(leaving, torch.ones_like(leaving))
        forward, backward = min(forward, middle - begin), min(backward, _now(device) - middle)
        kept = sum(saved.values())
    for parameter in part.parameters():
        parameter.grad = None  # before the next link has gradients: all of them might not fit
    weights = sum(parameter.nbytes for parameter in part.parameters() if parameter.requires_grad)
    return LinkTimes(forward, backward, weights, kept, leaving.nbytes), leaving


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@contextmanager
def _counted() -> Iterator[dict[int, int]]:
    """Bytes of the tensors that autograd keeps, by their memory, each counted once."""
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, nn.Parameter):
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield saved


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """A task may build one model only: statistics and random numbers are as before."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.train()
    with torch.random.fork_rng():
        yield
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])


def update_times(task: Task, options: TrainingOptions, lr: float) -> tuple[float, float]:
    """Measure, for each byte of weights, seconds of an update and bytes of the optimizer's state.

    Only some of the weights are updated, and they keep their values, so that little memory is needed.
    """
    device = own_device()
    model = build_model(task, options, torch.device("cpu"))  # whole, it may not fit on a device
    optimizer = optimizer_of(task, model, lr, options)
    require_own_parameters(model, optimizer)
    for group in optimizer.param_groups:
        group["lr"] = 0.0  # a task may build one model only: its weights stay
    chosen = _some_of([p for group in optimizer.param_groups for p in group["params"] if p.requires_grad])
    for parameter in chosen:
        parameter.data = parameter.data.to(device)
        parameter.grad = torch.zeros_like(parameter)
    seconds = []
    for _ in range(1 + _REPEATS):  # the first step makes the optimizer's state
        begin = _now(device)
        optimizer.step()
        seconds.append(_now(device) - begin)
    nbytes = sum(p.nbytes for p in chosen)
    slots = [slot for key, of in optimizer.state.items() if torch.is_tensor(key) for slot in of.values()]
    kept = sum(slot.nbytes for slot in slots if torch.is_tensor(slot))
    for parameter in chosen:
        parameter.grad, parameter.data = None, parameter.data.cpu()
    return min(seconds[1:]) / nbytes, kept / nbytes


def _some_of(parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """Some that are like most of the weights, `_UPDATED_BYTES` or more: half of all bytes are in larger ones."""
    by_size = sorted(parameters, key=lambda p: p.nbytes)
    up_to = list(itertools.accumulate(p.nbytes for p in by_size))
    typical = bisect.bisect_left(up_to, up_to[-1] / 2)
    largest_first = by_size[typical::-1]
    sums = itertools.accumulate((p.nbytes for p in largest_first), initial=0)
    return [p for p, before in zip(largest_first, sums, strict=False) if before < _UPDATED_BYTES]
