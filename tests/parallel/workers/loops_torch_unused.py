"""Checks of `loops_torch.py`: parameters that some ranks, or all of them, do not use."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

import hvdtrain.torch as hvd


class OwnHalves:
    """A compressor as a user may write it."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        return tensor.to(torch.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        return tensor.to(ctx)


LEAST = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133, torch.float32: 2.0**-149}  # above zero
REDUCTIONS: dict[str, tuple[torch.dtype, float, dict[str, Any]]] = {  # of weights, the gradient that one rank has
    "fp16": (torch.float32, LEAST[torch.float16], {"compression": hvd.Compression.fp16}),
    "a user's": (torch.float32, LEAST[torch.float16], {"compression": OwnHalves}),
    "fp16, predivided": (
        *(torch.float32, 8 * LEAST[torch.float16]),
        {"compression": hvd.Compression.fp16, "gradient_predivide_factor": 64.0},
    ),
    "weights of fp16": (torch.float16, LEAST[torch.float16], {}),
    "weights of bf16": (torch.bfloat16, LEAST[torch.bfloat16], {}),
    "plain": (torch.float32, LEAST[torch.float32], {}),
    "predivided": (torch.float32, 8 * LEAST[torch.float32], {"gradient_predivide_factor": 64.0}),
}


class Parts(nn.Module):
    """The first rank alone uses one part, and nobody uses another."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first, self.all, self.nobodys = (nn.Parameter(torch.zeros(3, dtype=dtype)) for _ in range(3))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return self.all.sum() + ((self.first * gradient).sum() if hvd.rank() == 0 else 0)


def train(model: nn.Module, dtype: torch.dtype, least: float, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.tensor([-least, 1.0, 1.0], dtype=dtype)).backward()
        optimizer.step()


def a_tiny_gradient_of_one_rank_is_one() -> None:
    """Its mean may be rounded to -0.0, by which ranks without a gradient tell that nobody has one."""
    for name, (dtype, least, options) in REDUCTIONS.items():
        model = Parts(dtype)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5), **options)
        train(model, dtype, least, optimizer)
        assert model.first[1] < -2 / hvd.size(), (name, model.first)
        hvd.assert_equal(model, optimizer)


class WholeNumbersLater:
    """A compressor that has whole numbers, which have no marks, from the second time on."""

    calls = 0

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        cls.calls += 1
        return (tensor.clone() if cls.calls == 1 else tensor.to(torch.int32)), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        return tensor.to(ctx)


def what_was_unused_before_may_be_used_now() -> None:
    model = nn.ParameterDict({name: nn.Parameter(torch.zeros(2)) for name in "ab"})
    compression: Any = WholeNumbersLater
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), compression=compression, op=hvd.Sum
    )
    for uses_b in (False, hvd.rank() == 0):
        optimizer.zero_grad()
        (model["a"].sum() + (model["b"].sum() if uses_b else 0)).backward()
        optimizer.step()
    assert model["b"].tolist() == [-1, -1]
    hvd.assert_equal(model)


def nobodys_parameter_keeps_no_gradient() -> None:
    for dtype, hook in (
        (torch.float32, None),
        (torch.float16, None),
        (torch.float32, default_hooks.fp16_compress_hook),
        (torch.float32, default_hooks.bf16_compress_hook),
    ):
        model = Parts(dtype)
        wrapped = hvd.DistributedDataParallel(model)
        if hook is not None:
            wrapped.register_comm_hook(None, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
        train(wrapped, dtype, LEAST[torch.float16], optimizer)
        assert model.nobodys.grad is None, hook
        assert model.first.grad is not None, hook
        hvd.assert_equal(model, optimizer)


def ranks_of_a_set_wait_for_no_others() -> None:
    """Also where a comm hook hides what is unused, and they count uses."""
    pair = hvd.add_process_set([0, 1])
    hooks: list[tuple[Any, Any]] = [
        (None, lambda _state, bucket: hvd.allreduce(bucket.buffer(), name="mine", process_set=pair)),
        (powersgd.PowerSGDState(None, 1, 2), powersgd.powerSGD_hook),
    ]
    for state, hook in hooks if pair.included() else ():
        model = Parts(torch.float32)
        wrapped = hvd.DistributedDataParallel(model, process_group=pair)
        wrapped.register_comm_hook(state, hook)
        train(wrapped, torch.float32, 0.5, torch.optim.SGD(model.parameters(), lr=1.0))
        assert model.nobodys.grad is None
        assert model.first.tolist() == [0.5, -1.0, -1.0]


def buffers_are_shared_to_the_last_bit() -> None:
    """In `join()`, where ranks that have no more batches get those of one that has."""
    torch.manual_seed(14)
    model = nn.Linear(2, 1)
    values = {
        "complex": torch.tensor([1 + 2j, -0.0]),
        "large": torch.tensor([2**60 + 1, -(2**62) - 1]),
        "short": torch.tensor([-3, 4], dtype=torch.int16),
        "flags": torch.tensor([True, False]),
        "halves": torch.tensor([-0.0, float("inf")], dtype=torch.bfloat16),
        "whole": torch.tensor([0.1, -(2.0**-149)]),
    }
    last = hvd.rank() == hvd.size() - 1
    for name, value in values.items():
        model.register_buffer(name, value if last else torch.zeros_like(value))
    wrapped = hvd.DistributedDataParallel(model, init_sync=False)
    with wrapped.join():
        for _ in range(2 if last else 1):
            wrapped(torch.ones(1, 2)).sum().backward()
    for name, value in values.items():
        assert str(model.get_buffer(name).tolist()) == str(value.tolist()), name


UNUSED_CHECKS: list[Callable[[], None]] = [
    what_was_unused_before_may_be_used_now,
    *(a_tiny_gradient_of_one_rank_is_one, nobodys_parameter_keeps_no_gradient, ranks_of_a_set_wait_for_no_others),
    buffers_are_shared_to_the_last_bit,
]
