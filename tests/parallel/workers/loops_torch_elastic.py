"""Checks of `loops_torch.py`: what an elastic state keeps, sends, and goes back to."""

from typing import Any

import pytest
import torch
from torch import nn

import hvdtrain.torch as hvd
from hvdtrain.errors import PeerError


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    """One update, in which all ranks change their weights in the same way; the weights and the momentum after it."""
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    momentum = [state["momentum_buffer"].tolist() for state in optimizer.state.values()]
    return [[parameter.tolist() for parameter in model.parameters()], momentum]


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Built with other weights and another rate on each rank."""
    torch.manual_seed(hvd.rank())
    model = nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=1.0 + hvd.rank(), momentum=0.9)


def a_worker_goes_back_to_what_it_was_sent() -> None:
    """Before its first own commit: not to what it was built with."""
    model, optimizer = made()
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
    if hvd.rank() == 0:
        trained(model, optimizer)
        state.step = 1
        state.save()
    state.sync()
    after_next = trained(model, optimizer)
    state.step += 1
    state.restore()
    assert state.step == 1
    assert trained(model, optimizer) == after_next
    hvd.assert_equal(model, optimizer)


def no_half_of_what_was_sent_is_kept() -> None:
    """Where the sending worker is lost in the middle: weights of one state with the step of another one."""
    model, _ = made()
    state = hvd.elastic.TorchState(model=model, step=0)
    before = [parameter.tolist() for parameter in model.parameters()]
    nn.init.ones_(model.weight)
    state._bcast_object = lose_the_sender
    with pytest.raises(PeerError):
        state.sync()
    state.restore()
    assert [parameter.tolist() for parameter in model.parameters()] == before


def lose_the_sender(values: object) -> object:  # noqa: ARG001
    raise PeerError("Rank 0 has ended.", "The others wait for its values.", "none")


ELASTIC_CHECKS = (a_worker_goes_back_to_what_it_was_sent, no_half_of_what_was_sent_is_kept)
