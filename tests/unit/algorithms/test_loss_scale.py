"""The loss scale moves as torch's GradScaler does, comes back from its state, and gives up in the end."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdtrain.algorithms.loss_scale import LossScale
from hvdtrain.errors import HvdtrainError


@given(steps=st.lists(st.booleans(), max_size=40), interval=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_it_moves_as_torch_s_does(steps: list[bool], interval: int) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=interval)
    ours = LossScale(2.0**16, interval)
    for finite in steps:
        if ours.scale <= 2.0**-13:
            return  # ours gives up here
        theirs.scale(weight * (1.0 if finite else torch.inf)).sum().backward()
        theirs.step(optimizer)
        theirs.update()
        optimizer.zero_grad()
        ours.after_step(finite)
        assert ours.scale == theirs.get_scale()


@given(steps=st.lists(st.booleans(), max_size=20), more=st.lists(st.booleans(), max_size=20))
def test_its_state_brings_it_back(steps: list[bool], more: list[bool]) -> None:
    one, other = LossScale(interval=3), LossScale(interval=3)
    for finite in steps:
        if not _goes_on(one, finite):
            return
    other.load_state(one.state())
    assert [_goes_on(one, finite) for finite in more] == [_goes_on(other, finite) for finite in more]
    assert one.state() == other.state()


def test_gradients_that_never_become_finite_end_the_run_on_all_ranks() -> None:
    with pytest.raises(HvdtrainError, match="not finite at a loss scale") as caught:
        _overflow_for_ever(LossScale())
    assert caught.value.joint


def test_a_state_without_a_scale_leaves_it() -> None:
    scale = LossScale()
    scale.load_state({})
    assert scale.scale == 2.0**16


def _goes_on(scale: LossScale, finite: bool) -> bool:
    try:
        scale.after_step(finite)
    except HvdtrainError:
        return False
    return True


def _overflow_for_ever(scale: LossScale) -> None:
    for _ in range(100):
        scale.after_step(finite=False)
