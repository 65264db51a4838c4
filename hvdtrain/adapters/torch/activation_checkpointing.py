"""Activation checkpointing: blocks of a model keep their inputs only, and compute the rest again in the backward pass.

Chen et al. 2016 (arXiv:1604.06174), by torch.utils.checkpoint, which sees to random numbers (dropout) and autocast.
What is added here: a repetition changes no buffer (BatchNorm's statistics), and it runs no collectives.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, Self

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hvdtrain.adapters.forward_pass import ForwardMemory
from hvdtrain.errors import UsageError


def checkpoint_activations(model: nn.Module, compiled: bool = False) -> int:
    """Let each of the model's repeated blocks compute its activations again in the backward pass; returns how many do.

    A block is a part made of several layers in an `nn.Sequential` or `nn.ModuleList` (and is not just a
    container of such blocks itself): the residual blocks of a ResNet, the layers of a transformer. Only their `forward`
    is wrapped, so that a state_dict does not change. In evaluation nothing does.

    Args: `compiled`: the model is to be compiled, too. What decides on the repetition cannot be part of a compiled
    graph, so that each block is compiled by itself.

    Raises `UsageError`: the model has fewer than two such blocks.
    """
    blocks = list(dict.fromkeys(_blocks(model)))
    if len(blocks) < 2:
        raise UsageError(
            f"The model {type(model).__name__} has no repeated blocks: no two parts of several layers each in an "
            "nn.Sequential or nn.ModuleList.",
            "--activation-checkpointing keeps what goes into each block, and computes what is inside it again.",
            "leave --activation-checkpointing out, or put the model's blocks into an nn.Sequential.",
        )
    kinds = {kind: _repeating(kind, compiled) for kind in {type(block) for block in blocks}}
    for block in blocks:
        # Not a `forward` of its own for each: copies of the model (DataParallel's) would call the original's blocks.
        block.__class__ = kinds[type(block)]
    return len(blocks)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost ones, in the model's order; one that is at several places several times."""
    in_row = isinstance(module, nn.Sequential | nn.ModuleList)
    for child in module.children():
        if in_row and _is_composite(child) and not _holds_blocks(child):
            yield child
        else:
            yield from _blocks(child)


def _is_composite(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _holds_blocks(module: nn.Module) -> bool:
    """Whether it is only a row of parts with blocks among them, as a stage of a network is; or is never called."""
    if type(module).forward is nn.Module.forward:  # nn.ModuleList and its like
        return True
    return type(module) is nn.Sequential and any(_is_composite(child) for child in module.children())


def _repeating(kind: type[nn.Module], compiled: bool) -> type[nn.Module]:
    """The same class of layers but for its `forward`."""
    forward = torch.compile(kind.forward) if compiled else kind.forward

    def twice(block: nn.Module, *inputs: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(block, *inputs, **options)
        contexts = partial(_contexts, block)
        return checkpoint(forward, block, *inputs, use_reentrant=False, context_fn=contexts, **options)

    if compiled:  # else left alone: importing the compiler takes a second
        twice = torch.compiler.disable(twice, recursive=False)  # type: ignore[no-untyped-call]
    return type(kind.__name__, (kind,), {"forward": twice, "__module__": kind.__module__})


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[object]]:
    """Make the contexts of the forward pass and of its repetitions: there may be several where a graph is retained."""
    memory = ForwardMemory()
    return memory.recording(), _Repetition(memory, _copy_buffers(block))


_Buffers = list[tuple[nn.Module, str, torch.Tensor]]


def _copy_buffers(block: nn.Module) -> _Buffers:
    """BatchNorm's statistics and their like, as they are before the forward pass."""
    return [
        (part, name, buffer.clone())
        for part in block.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]


@contextmanager
def _buffers_replaced(before: _Buffers) -> Iterator[None]:
    """A repetition starts from the buffers that the forward pass started from, and what it does to them is forgotten.

    Other tensors take their places: written back, the buffers would count as changed to autograd.
    """
    kept = [part._buffers[name] for part, name, _ in before]
    for part, name, buffer in before:
        part._buffers[name] = buffer.clone()
    try:
        yield
    finally:
        for (part, name, _), trained in zip(before, kept, strict=True):
            part._buffers[name] = trained


class _Repetition(ExitStack):
    """Can be entered again and again, unlike the contexts in it."""

    def __init__(self, memory: ForwardMemory, buffers: _Buffers) -> None:
        super().__init__()
        self._memory, self._buffers = memory, buffers

    def __enter__(self) -> Self:
        self.enter_context(self._memory.repeating())
        self.enter_context(_buffers_replaced(self._buffers))
        return self
