"""Checks of `loops_torch.py`: sparse tensors in the state of a model or an optimizer."""

import math
import tempfile
from collections.abc import Callable

import pytest
import torch
from torch import nn

import hvdtrain.torch as hvd
from hvdtrain.errors import UsageError


def made() -> tuple[nn.Embedding, torch.optim.Optimizer]:
    """Words with momentum, which is sparse, and with neighbours, of which some are there twice."""
    words = nn.Embedding(5, 2, sparse=True)
    words.register_buffer("near", torch.sparse_coo_tensor([[0, 0, 1]], [1.0, 2.0, 3.0], (2,)).bfloat16())
    hvd.broadcast_parameters([words.weight], 0)
    sgd = torch.optim.SGD(words.parameters(), lr=0.1, momentum=0.9)
    return words, hvd.DistributedOptimizer(sgd, words.named_parameters(), op=hvd.Sum)


def trained(words: nn.Embedding, optimizer: torch.optim.Optimizer, steps: range) -> torch.Tensor:
    for step in steps:
        optimizer.zero_grad()
        words(torch.tensor([step, step + hvd.rank() % 2])).square().sum().backward()
        optimizer.step()
    return words.weight.detach()


def sparse_state_is_saved_and_compared() -> None:
    torch.manual_seed(13)
    folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, 0)
    words, optimizer = made()
    trained(words, optimizer, range(2))
    hvd.assert_equal(words, optimizer)
    hvd.Checkpoint(folder, net=words, optimizer=optimizer).save(2, wait=True)
    with torch.no_grad():
        words.near._values().fill_(4.0)
    others, its_optimizer = made()
    assert hvd.Checkpoint(folder, net=others, optimizer=its_optimizer).restore().step == 2
    hvd.assert_equal(others, its_optimizer)
    assert others.near.to_dense().tolist() == [3.0, 3.0]
    (momentum,) = (state["momentum_buffer"] for state in its_optimizer.state.values())
    assert momentum.is_sparse
    assert torch.equal(trained(words, optimizer, range(2, 4)), trained(others, its_optimizer, range(2, 4)))


def sparse_gradients_of_bfloat16_are_added_up() -> None:
    words = nn.Embedding(5, 2, sparse=True, dtype=torch.bfloat16)
    hvd.broadcast_parameters([words.weight], 0)
    before = words.weight.detach().clone()
    sgd = torch.optim.SGD(words.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, words.named_parameters(), op=hvd.Sum)
    words(torch.tensor([0, 1 + hvd.rank()])).sum().backward()
    optimizer.step()
    times = [hvd.size(), *([1] * hvd.size()), *([0] * 5)][:5]
    assert torch.equal(words.weight, before - torch.tensor(times, dtype=torch.bfloat16)[:, None])


def what_is_sparse_and_cannot_be_sent_is_refused() -> None:
    """On all ranks, also where one alone has it, by its name."""
    folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, 0)
    words, optimizer = made()
    words.near = torch.eye(2).to_sparse_csr() if hvd.rank() == 0 else torch.eye(2)
    checkpoint = hvd.Checkpoint(folder, optimizer=optimizer, table=_Table(words))
    if hvd.rank() == 0:
        optimizer.state[words.weight]["momentum_buffer"] = torch.eye(2).to_sparse()
    cases: list[tuple[str, Callable[[], object]]] = [
        ("On rank 0: table/near is a tensor of the layout torch.sparse_csr", lambda: checkpoint.save(1)),
        ("On rank 0: _Table 0/near is a tensor", lambda: hvd.assert_equal(_Table(words))),
        ("The state of SGD has a sparse tensor", lambda: hvd.broadcast_optimizer_state(optimizer, 0)),
        ("near is a tensor of the layout", lambda: hvd.broadcast_parameters(made()[0].state_dict(), 0)),
    ]
    for said, call in cases:
        with pytest.raises(UsageError, match=said):
            call()


class _Table:
    """What a checkpoint takes as it is, and not as a module."""

    def __init__(self, words: nn.Embedding) -> None:
        self._words = words

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self._words.state_dict()

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self._words.load_state_dict(state)


def rows_are_added_up_or_refused() -> None:
    for op in (hvd.Max, hvd.Min, hvd.Product):
        for as_dense in (True, False):
            words = nn.Embedding.from_pretrained(torch.zeros(3, 2), freeze=False, sparse=True)
            sgd = torch.optim.SGD(words.parameters(), lr=1.0)
            optimizer = hvd.DistributedOptimizer(sgd, words.named_parameters(), op=op, sparse_as_dense=as_dense)
            (words(torch.tensor([1])) * (hvd.rank() + 1)).sum().backward()
            if as_dense:
                optimizer.step()
                found = {hvd.Max: hvd.size(), hvd.Min: 1, hvd.Product: math.factorial(hvd.size())}[op]
                assert words.weight[1].tolist() == [-found] * 2
            else:
                with pytest.raises(UsageError, match="sparse .torch.sparse_coo., and op is neither"):
                    optimizer.step()


SPARSE_CHECKS = (
    rows_are_added_up_or_refused,
    sparse_state_is_saved_and_compared,
    sparse_gradients_of_bfloat16_are_added_up,
    what_is_sparse_and_cannot_be_sent_is_refused,
)
