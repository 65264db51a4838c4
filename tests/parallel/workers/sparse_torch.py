"""`sparse_checks` in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from linear_training import NoData
from sparse_checks import LR, SPARSE, WORDS, Ranks, require_close
from torch import nn

from hvdtrain.run.start import open_adapter

Build = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Words(nn.Module):
    """A table of words, a second one for rows with a rare word, which a rank may have none of, and a dense layer."""

    def __init__(self, sparse: bool, dense_layer: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 4, sparse=sparse)
        self.seldom = nn.EmbeddingBag(WORDS, 4, mode="sum", sparse=sparse)
        self.out = nn.Linear(4, 1) if dense_layer else None

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.table(words).mean(dim=1)
        rare = (words >= WORDS - 2).any(dim=1)
        if rare.any():
            hidden = hidden.index_add(0, rare.nonzero()[:, 0], self.seldom(words[rare]))
        predicted: torch.Tensor = hidden.sum(dim=1) if self.out is None else self.out(hidden)[:, 0]
        return predicted


class Predict(NoData):
    framework = "torch"

    def __init__(self, build: Build, sparse: bool = True, dense_layer: bool = True) -> None:
        self.build, self.sparse, self.dense_layer = build, sparse, dense_layer

    def build_model(self) -> nn.Module:
        return Words(self.sparse, self.dense_layer)

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:  # noqa: ARG002
        return self.build(model.parameters())

    def measure(self, model: Any, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"loss": (model(batch["w"]) - batch["y"]).square()}


class Asking(Predict):
    """Counts the updates that an optimizer is given sparse gradients for."""

    sparse_updates = 0

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        optimizer = super().build_optimizer(model, lr)
        table = model.table

        def count(*_: Any) -> None:
            assert isinstance(table, nn.Embedding)
            gradient = table.weight.grad
            assert gradient is not None
            self.sparse_updates += gradient.is_sparse

        optimizer.register_step_pre_hook(count)
        return optimizer


def check_sgd(ranks: Ranks) -> None:
    sgd = partial(torch.optim.SGD, lr=LR)
    ranks.check_as_dense(Predict(sgd))
    ranks.check_as_dense(Predict(sgd), replace(SPARSE, max_grad_norm=0.5))
    ranks.check_as_dense(Predict(sgd), replace(SPARSE, accumulate_steps=2))
    ranks.check_as_dense(Predict(sgd), replace(SPARSE, optimizer="lamb"))
    asking = Asking(sgd)
    ranks.train(asking, SPARSE)
    assert asking.sparse_updates == 5


def check_rules_of_their_own(ranks: Ranks) -> None:
    """Adagrad's are those of dense gradients; SparseAdam leaves rows alone that nobody touched."""
    ranks.check_as_dense(Predict(partial(torch.optim.Adagrad, lr=LR)))
    state = ranks.check_as_alone(Predict(partial(torch.optim.SparseAdam, lr=LR), dense_layer=False))  # type: ignore[arg-type]
    moments = state["optimizer/table.weight/exp_avg"]
    assert not moments[0].any()
    assert moments[1:].any(axis=1).all()


def check_dense_stays_possible(ranks: Ranks) -> None:
    adam = Predict(partial(torch.optim.Adam, lr=LR))
    dense = replace(SPARSE, sparse_gradients="dense")
    require_close(ranks.train(adam, dense).state(), ranks.train_alone(adam, dense).state())


def check_refusals(ranks: Ranks) -> None:
    def opening(task: Predict) -> Callable[[], object]:
        return lambda: open_adapter(task, ranks.comm.topology, 1, LR, SPARSE)

    adam, momentum = partial(torch.optim.Adam, lr=LR), partial(torch.optim.SGD, lr=LR, momentum=0.9)
    ranks.require_refused_everywhere(opening(Predict(adam)), "Adam does not take", "leave --sparse-gradients out")
    ranks.require_refused_everywhere(opening(Predict(momentum)), "SGD does not take", "momentum_buffer sparse")
    ranks.require_refused_everywhere(opening(Predict(adam, sparse=False)), "has no sparse gradients")


def main() -> None:
    torch.set_num_threads(1)
    ranks = Ranks("torch")
    for check in (check_sgd, check_rules_of_their_own, check_dense_stays_possible, check_refusals):
        check(ranks)
    ranks.leave()


main()
