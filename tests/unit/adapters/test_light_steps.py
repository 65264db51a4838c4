"""A light backward pass gives the same gradients, and a light step leaves out nobody who wants to know of it."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import optimizer as torch_optimizer

from hvdtrain.adapters.torch.compiler_import import spare_compiler_import
from hvdtrain.adapters.torch.passes import backward
from hvdtrain.adapters.torch.update import optimizer_step

spare_compiler_import()


@given(st.integers(0, 2**31), st.integers(1, 9))
def test_gradients_are_those_of_the_weighted_sum(seed: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(4, generator=generator, requires_grad=True)
    x, shares = torch.randn(rows, 4, generator=generator), torch.rand(rows, generator=generator)
    (x @ weight).tanh().dot(shares).backward()
    expected, weight.grad = weight.grad, None
    backward((x @ weight).tanh(), shares)
    assert expected is not None
    assert weight.grad is not None
    assert torch.equal(weight.grad, expected)


class Counting(torch.optim.SGD):
    """An optimizer of a user's own, whose step calls the one that it extends."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr)
        self.steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        return super().step(closure)


def _model_after(kind: type[torch.optim.Optimizer], step: Callable[[torch.optim.Optimizer], object]) -> torch.Tensor:
    weight = torch.nn.Parameter(torch.arange(3.0))
    optimizer = kind([weight], lr=0.1)  # type: ignore[call-arg]
    for number in range(3):
        weight.grad = torch.full((3,), float(number))
        step(optimizer)
    return weight.detach()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adam, Counting])
def test_a_step_is_the_same(kind: type[torch.optim.Optimizer]) -> None:
    assert torch.equal(_model_after(kind, optimizer_step), _model_after(kind, lambda optimizer: optimizer.step()))


def _optimizer() -> torch.optim.Optimizer:
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.ones(2)
    return torch.optim.SGD([weight], lr=0.1)


def test_a_users_own_step_is_called() -> None:
    optimizer = Counting([torch.nn.Parameter(torch.zeros(2))], 0.1)
    optimizer_step(optimizer)
    assert optimizer.steps == 1


def _before(optimizer: torch.optim.Optimizer, told: Callable[..., None]) -> Any:
    return optimizer.register_step_pre_hook(told)


def _after(optimizer: torch.optim.Optimizer, told: Callable[..., None]) -> Any:
    return optimizer.register_step_post_hook(told)


def _before_all(_optimizer: torch.optim.Optimizer, told: Callable[..., None]) -> Any:
    return torch_optimizer.register_optimizer_step_pre_hook(told)


def _after_all(_optimizer: torch.optim.Optimizer, told: Callable[..., None]) -> Any:
    return torch_optimizer.register_optimizer_step_post_hook(told)


@pytest.mark.parametrize("register", [_before, _after, _before_all, _after_all])
def test_hooks_are_called(register: Callable[[torch.optim.Optimizer, Callable[..., None]], Any]) -> None:
    calls: list[object] = []
    optimizer = _optimizer()
    handle = register(optimizer, lambda *_: calls.append(1))
    try:
        optimizer_step(optimizer)
    finally:
        handle.remove()
    assert calls == [1]
    optimizer_step(optimizer)
    assert calls == [1]


def test_a_learning_rate_scheduler_counts_steps() -> None:
    optimizer = _optimizer()
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer_step(optimizer)
    assert optimizer._opt_called  # type: ignore[attr-defined]  # else the scheduler warns


def test_a_profiler_sees_the_step() -> None:
    optimizer = _optimizer()
    with torch.autograd.profiler.profile() as profile:
        optimizer_step(optimizer)
    assert any("Optimizer.step#SGD.step" in event.key for event in profile.key_averages())


@contextmanager
def _replaced(kind: type, step: Any) -> Iterator[None]:
    before = kind.step  # type: ignore[attr-defined]
    kind.step = step  # type: ignore[attr-defined]
    try:
        yield
    finally:
        kind.step = before  # type: ignore[attr-defined]


def test_what_somebody_has_put_around_the_class_step_is_called() -> None:
    optimizer, calls = _optimizer(), []
    inner = torch.optim.SGD.step

    @functools.wraps(inner)
    def around(self: Any, *args: Any) -> Any:
        calls.append(1)
        return inner(self, *args)

    with _replaced(torch.optim.SGD, around):
        optimizer_step(optimizer)
    assert calls == [1]
