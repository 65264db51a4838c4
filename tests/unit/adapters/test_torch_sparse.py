"""Which gradients are sparse in torch, who takes them, and one process with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hvdtrain.adapters.torch.build import open_gradient_sync
from hvdtrain.adapters.torch.optimizers import build_optimizer
from hvdtrain.adapters.torch.sparse import require_taking_sparse, sparse_parameters
from hvdtrain.adapters.torch.update import Update
from hvdtrain.algorithms.clipping import Clipping
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.errors import UsageError
from hvdtrain.topology import Topology

pytestmark = pytest.mark.timeout(60)


def opened(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """The gradient sync of --sparse-gradients allgather in one process."""
    return open_gradient_sync(model, optimizer, Topology.single(), TrainingOptions(sparse_gradients="allgather"))


@pytest.fixture(autouse=True)
def _torch_does_not_warn() -> None:
    """As `SparseGradients` sees to."""
    torch.sparse.check_sparse_tensor_invariants.disable()


class Tables(nn.Module):
    """Embeddings of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.sparse = nn.Embedding(6, 2, sparse=True)
        self.bag = nn.EmbeddingBag(6, 2, sparse=True)
        self.dense = nn.Embedding(6, 2)
        self.tied = nn.Embedding(6, 2, sparse=True)
        self.out = nn.Linear(2, 6, bias=False)
        self.out.weight = self.tied.weight
        self.frozen = nn.Embedding(6, 2, sparse=True).requires_grad_(False)


def test_only_weights_of_sparse_embeddings_alone_are_sparse() -> None:
    assert list(sparse_parameters(Tables())) == ["sparse.weight", "bag.weight"]


Build = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@pytest.mark.parametrize(
    "build",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SparseAdam(p, lr=0.1),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
    ],
)
def test_optimizers_for_sparse_gradients_are_taken_and_left_as_they_are(build: Build) -> None:
    table = nn.Embedding(4, 2, sparse=True)
    before = table.weight.detach().clone()
    optimizer = build(table.parameters())
    held, hooked = str(optimizer.state_dict()), []
    optimizer.register_step_pre_hook(lambda *_: hooked.append(1))
    require_taking_sparse(optimizer, {"table": table.weight})
    assert str(optimizer.state_dict()) == held
    assert hooked == []
    assert torch.equal(table.weight, before)
    assert table.weight.grad is None


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda p: torch.optim.Adam(p, lr=0.1), "SparseAdam"),
        (lambda p: torch.optim.AdamW(p, lr=0.1), "SparseAdam"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "momentum_buffer sparse"),
        (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1), "add"),
        (lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=0.1), "weight_decay"),
    ],
)
def test_others_are_refused_by_name_with_a_way_out(build: Build, why: str) -> None:
    table = nn.Embedding(4, 2, sparse=True)
    with pytest.raises(UsageError, match="does not take the sparse gradient of table") as refused:
        require_taking_sparse(build(table.parameters()), {"table": table.weight})
    assert why in refused.value.fact
    assert "leave --sparse-gradients out" in refused.value.hint


def test_only_the_group_with_the_table_counts() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(4, 2, sparse=True), "out": nn.Linear(2, 1)})
    groups = [{"params": model["table"].parameters()}, {"params": model["out"].parameters(), "momentum": 0.9}]
    require_taking_sparse(torch.optim.SGD(groups, lr=0.1), sparse_parameters(model))


def test_optimizers_by_name_that_make_gradients_dense_are_taken() -> None:
    model = nn.Sequential(nn.Embedding(4, 2, sparse=True))
    options = TrainingOptions(optimizer="lars", sparse_gradients="allgather")
    require_taking_sparse(build_optimizer(model, 0.1, options), sparse_parameters(model))
    adamw = build_optimizer(model, 0.1, TrainingOptions(optimizer="adamw", sparse_gradients="allgather"))
    with pytest.raises(UsageError, match="AdamW"):
        require_taking_sparse(adamw, sparse_parameters(model))


def test_a_model_without_sparse_gradients_is_refused() -> None:
    model = nn.Embedding(4, 2)
    with pytest.raises(UsageError, match="no sparse gradients"):
        opened(model, torch.optim.SGD(model.parameters(), lr=0.1))


@given(words=st.lists(st.integers(0, 5), max_size=8), max_norm=st.floats(0.01, 3.0))
@settings(max_examples=30)
def test_one_process_clips_sparse_gradients_as_dense_ones(words: list[int], max_norm: float) -> None:
    """Also rows that come twice, and none at all."""
    steps = []
    for sparse in (True, False):
        torch.manual_seed(0)
        model: Any = nn.ModuleDict({"table": nn.Embedding(6, 2, sparse=sparse), "out": nn.Linear(2, 1)})
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        exchange: Any = opened(model, optimizer) if sparse else None
        loss = model["out"](model["table"](torch.tensor(words, dtype=torch.int64))).sum() * (1 if words else 0)
        loss.backward()
        if sparse:
            exchange.finish()
            gradient = model["table"].weight.grad
            assert (gradient is not None) == bool(words)
            assert gradient is None or (gradient.is_sparse and len(gradient.indices()[0]) == len(set(words)))
        else:
            for parameter in model.parameters():
                assert parameter.grad is not None
        Update(optimizer, list(model.parameters()), Clipping(max_norm)).step()
        steps.append(torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]))
    torch.testing.assert_close(steps[0], steps[1])


def test_no_limit_is_no_clipping() -> None:
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.full((2,), 1e6)
    Update(torch.optim.SGD([weight], lr=1.0), [weight]).step()
    assert weight.tolist() == [-1e6, -1e6]


def test_a_table_whose_rows_nobody_needed_has_no_gradient() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(6, 2, sparse=True), "out": nn.Linear(2, 1)})
    exchange = opened(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model["out"](torch.ones(1, 2)).sum().backward()
    exchange.finish()
    assert [parameter.grad is None for parameter in model.parameters()] == [True, False, False]
    exchange.clear()
    assert [parameter.grad for parameter in model.parameters()] == [None] * 3


def test_weights_that_turn_out_to_be_used_otherwise_are_named() -> None:
    model = nn.Sequential(nn.Embedding(6, 2, sparse=True))
    exchange = opened(model, torch.optim.SGD(model.parameters(), lr=0.1))
    weight: Any = model[0].weight
    (model(torch.tensor([1])).sum() + weight.square().sum()).backward()
    with pytest.raises(UsageError, match=r"The gradient of 0\.weight is dense"):
        exchange.finish()
