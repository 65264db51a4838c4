"""What each link of a chain takes: the time of its passes, and the bytes that it keeps, for one micro batch."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from hvdtrain.adapters.torch.device import low_precision
from hvdtrain.adapters.torch.passes import Measurement
from hvdtrain.adapters.torch.pipeline.chain import Chain
from hvdtrain.adapters.torch.pipeline.split_call import GivenOutput, captured_input
from hvdtrain.config.training_options import Precision
from hvdtrain.errors import UsageError
from hvdtrain.task.task import Task

_REPEATS = 3  # the fastest counts: others were disturbed


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
    """Time each link. The model is on the host, and is afterwards as it was.

    Args: `device`: on which one link at a time is timed.

    Raises:
        UsageError: a link does not return a tensor; the links, as a task lists them, are another model; or `measure`
            needs more of the model than its output.
    """
    placed = Measurement(task, precision, device).placed(features)
    links = []
    with _unchanged(chain.model), low_precision(precision, device):
        entering = captured_input(task, placed, chain.model)
        if chain.is_listed:
            _require_same_output(chain, entering)
        for link in range(len(chain.names)):
            weights = sum(p.numel() * p.element_size() for p in chain.trained(link))
            part = chain.part(link, link + 1).to(device)
            times, entering = _timed(part, entering, device, weights)
            part.to("cpu")
            links.append(times)
        with torch.no_grad():
            task.measure(GivenOutput(entering), placed)
    return links


def require_divisible(task: Task, chain: Chain, precision: Precision, features: dict[str, NDArray[Any]]) -> None:
    """What `link_times` checks, without timing anything, on the host. Arguments and errors as there."""
    device = torch.device("cpu")
    placed = Measurement(task, precision, device).placed(features)
    with _unchanged(chain.model), low_precision(precision, device):
        entering = captured_input(task, placed, chain.model)
        if chain.is_listed:
            _require_same_output(chain, entering)
        leaving = chain.part(0, len(chain.names))(entering).detach()
        with torch.no_grad():
            task.measure(GivenOutput(leaving), placed)


def _require_same_output(chain: Chain, entering: torch.Tensor) -> None:
    """The links may lack one without weights, or have another order."""
    model, chained = chain.model, chain.part(0, len(chain.names))
    model.eval()
    with torch.no_grad():
        whole = model(entering.cpu())
        try:
            listed = chained(entering.cpu())
            is_same = listed.shape == whole.shape and torch.allclose(listed, whole, 1e-3, 1e-5, equal_nan=True)
        except (RuntimeError, TypeError, ValueError):
            is_same = False
    model.train()
    if not is_same:
        raise UsageError(
            "The layers that the task's stages() lists do not compute what its model computes.",
            "They are called one after the other, each with what the one before it has returned.",
            "return the list of all modules of the model that are called, in the order in which they are.",
        )


def _timed(
    part: nn.Module, entering: torch.Tensor, device: torch.device, weights: int
) -> tuple[LinkTimes, torch.Tensor]:
    """The times of the link, and what comes out of it."""
    forward = backward = float("inf")
    leaving, kept = entering, 0
    for _ in range(_REPEATS):
        leaf = entering.detach()
        if leaf.is_floating_point():
            leaf.requires_grad_()
        begin = _now(device)
        with _counted() as saved:
            leaving = part(leaf.clone())  # which layers may work on in place
        if not isinstance(leaving, torch.Tensor):
            raise UsageError(
                f"A part of the model returns a {type(leaving).__name__}.",
                "What is passed from one stage to the next is one tensor.",
                "list the layers that may be parted in the task's stages(model).",
            )
        middle = _now(device)
        if leaving.requires_grad:
            torch.autograd.backward(leaving, torch.ones_like(leaving))
        forward, backward = min(forward, middle - begin), min(backward, _now(device) - middle)
        kept = sum(saved.values())
    for parameter in part.parameters():
        parameter.grad = None  # before the next link has gradients: all of them might not fit
    nbytes = leaving.numel() * leaving.element_size()
    return LinkTimes(forward, backward, weights, kept, nbytes), leaving.detach()


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
