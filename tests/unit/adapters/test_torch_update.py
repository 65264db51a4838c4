"""Unscale, clip, step: in this order, and not at all where gradients overflow."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdtrain.adapters.torch.update import Update
from hvdtrain.algorithms.clipping import Clipping
from hvdtrain.algorithms.interval_sums import mean_and_peak
from hvdtrain.algorithms.loss_scale import LossScale

GRADIENTS = st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3)


def weights(gradient: list[float]) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.grad = torch.tensor(gradient)
    return parameter, torch.optim.SGD([parameter], lr=1.0)


@given(gradient=GRADIENTS, max_norm=st.floats(1e-3, 1e3))
@settings(deadline=None)
def test_the_scaled_update_is_the_plain_one_of_unscaled_gradients(gradient: list[float], max_norm: float) -> None:
    plain, optimizer = weights(gradient)
    assert Update(optimizer, [plain], Clipping(max_norm)).step()
    scaled, optimizer = weights(gradient)
    update = Update(optimizer, [scaled], Clipping(max_norm), LossScale())
    assert scaled.grad is not None
    scaled.grad *= update.scale
    assert update.step()
    torch.testing.assert_close(scaled.data, plain.data, rtol=1e-5, atol=1e-7)
    assert plain.norm() <= max_norm * 1.001


@pytest.mark.parametrize("scaled", [False, True])
def test_without_a_limit_nothing_is_clipped(scaled: bool) -> None:
    parameter, optimizer = weights([3.0, 4.0, 0.0])
    update = Update(optimizer, [parameter], loss_scale=LossScale() if scaled else None)
    assert parameter.grad is not None
    parameter.grad *= update.scale
    update.step()
    assert parameter.tolist() == [-3.0, -4.0, 0.0]


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_an_overflow_leaves_the_weights_and_halves_the_scale(bad: float) -> None:
    parameter, optimizer = weights([1.0, bad, 1.0])
    update = Update(optimizer, [parameter], Clipping(1.0), LossScale())
    before = update.scale
    assert not update.step()
    assert parameter.tolist() == [0.0, 0.0, 0.0]
    assert update.scale == before / 2
    assert not optimizer.state


@pytest.mark.parametrize("scaled", [False, True])
def test_the_norm_is_that_before_clipping_and_its_mean_and_peak_are_read_once(scaled: bool) -> None:
    parameter, optimizer = weights([3.0, 4.0, 0.0])
    update = Update(optimizer, [parameter], Clipping(1.0), LossScale() if scaled else None)
    for norm in (7.0, 5.0):
        parameter.grad = torch.tensor([norm, 0.0, 0.0]) * update.scale
        update.step()
    assert mean_and_peak(update.norms.read()) == pytest.approx((6.0, 7.0), rel=1e-6)
    assert update.norms.read() is None


def test_a_norm_that_is_only_logged_changes_no_update() -> None:
    parameter, optimizer = weights([3.0, 4.0, 0.0])
    update = Update(optimizer, [parameter], Clipping(logs_norm=True))
    update.step()
    assert parameter.tolist() == [-3.0, -4.0, 0.0]
    assert mean_and_peak(update.norms.read()) == (5.0, 5.0)


def test_a_norm_that_nobody_asked_for_is_not_computed_and_one_that_overflowed_does_not_count() -> None:
    parameter, optimizer = weights([3.0, 4.0, 0.0])
    update = Update(optimizer, [parameter])
    update.step()
    assert update.norms.read() is None
    parameter, optimizer = weights([math.inf, 0.0, 0.0])
    scaled = Update(optimizer, [parameter], loss_scale=LossScale())
    scaled.step()
    assert scaled.norms.read() is None
