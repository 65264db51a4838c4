"""A model as a chain: cut anywhere, its parts compute what it computes, and have its weights under its names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import hvdtrain
from hvdtrain.adapters.gathered_state import StageState
from hvdtrain.adapters.torch.pipeline.chain import Chain, chain_of
from hvdtrain.adapters.torch.pipeline.layer_times import link_times
from hvdtrain.adapters.torch.pipeline.staged_model import keep_stages
from hvdtrain.adapters.torch.state import load_state, read_state
from hvdtrain.errors import UsageError
from hvdtrain.models.torch import zoo
from hvdtrain.tasks.torch import TorchDigits
from hvdtrain.topology import Topology
from hvdtrain.topology.topology import Grid

CPU = torch.device("cpu")
PICTURES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, int]] = {
    "resnet18": (lambda: zoo.build_model("resnet18", 10, 32), PICTURES, 10),
    "resnet50": (lambda: zoo.build_model("resnet50", 10, 32), PICTURES, 18),
    "mobilenet_v2": (lambda: zoo.build_model("mobilenet_v2", 10, 32), PICTURES, 20),
    "vit_b_16": (lambda: zoo.build_model("vit_b_16", 10, 32), PICTURES, 3),
    "transformer": (lambda: zoo.Transformer(50, 16, 8, 2, 3), torch.randint(0, 50, (2, 9)), 6),
    "small_cnn": (lambda: zoo.small_cnn(32, 3, 10, 4), PICTURES, 4),
}


class Listing(TorchDigits):
    """A task that says itself what is called one after the other."""

    def __init__(self, links: Callable[[nn.Module], Any] | None = None) -> None:
        super().__init__()
        self._links = links

    def stages(self, model: nn.Module) -> Any:
        return None if self._links is None else self._links(model)


def cut(model: nn.Module, links: Callable[[nn.Module], Any] | None = None) -> Chain:
    return chain_of(Listing(links), model)


def refusal(model: nn.Module, links: Callable[[nn.Module], Any] | None = None) -> str:
    with pytest.raises(UsageError) as refused:
        cut(model, links)
    return str(refused.value)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_cut_anywhere_it_computes_the_same(name: str) -> None:
    build, entering, least = MODELS[name]
    model = build().eval()
    chain = cut(model)
    whole, links = model(entering), len(chain.names)
    assert sum(bool(chain.trained(link)) for link in range(links)) >= least
    for place in range(1, links):
        leaving = chain.part(place, links)(chain.part(0, place)(entering))
        torch.testing.assert_close(leaving, whole, rtol=0, atol=0)


@pytest.mark.parametrize("name", MODELS)
def test_each_weight_is_in_one_stage_under_its_name(name: str) -> None:
    build, _, _ = MODELS[name]
    names = [key for key in build().state_dict()]
    found: list[str] = []
    for own in range(3):
        chain = cut(build())
        third = len(chain.names) // 3
        staged = keep_stages(chain, [third, 2 * third], own, [CPU])
        found += staged.model.state_dict()
        assert staged.others >= {*names} - staged.model.state_dict().keys()
        assert {id(p) for p in staged.modules[0].parameters()} == {id(p) for p in staged.model.parameters()}
    assert sorted(found) == sorted(names)


class Counted(nn.Linear):
    """Keeps a number beside its weights."""

    count = 0

    def get_extra_state(self) -> Any:
        return {"count": self.count}

    def set_extra_state(self, state: Any) -> None:
        self.count = state["count"]


def test_each_stage_takes_its_own_extra_states() -> None:
    whole = nn.Sequential(*(Counted(2, 2) for _ in range(3)))
    for number, layer in enumerate(whole):
        layer.count = number + 1
    state = read_state(whole, torch.optim.SGD(whole.parameters(), lr=0.1))
    for own in range(3):
        staged = keep_stages(cut(nn.Sequential(*(Counted(2, 2) for _ in range(3)))), [1, 2], own, [CPU])
        stage = StageState(staged.others, staged.drifting, Grid(Topology(own, 3, own, 3, 0, 1), 3))
        load_state(staged.model, torch.optim.SGD(staged.model.parameters(), lr=0.1), stage.own_of(state))
        assert [layer.count for layer in staged.model.modules() if isinstance(layer, Counted)] == [own + 1]


def test_a_block_is_never_cut() -> None:
    names = cut(zoo.build_model("resnet18", 10, 32)).names
    assert "layer1.1" in names
    assert not any(name.startswith("layer1.1.") for name in names)


class Tied(nn.Module):
    """The last layer has the first one's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(7, 4)
        self.middle = nn.Linear(4, 4)
        self.logits = nn.Linear(4, 7)
        self.logits.weight = self.symbols.weight
        self.after = nn.Linear(7, 2)

    def forward(self, seen: torch.Tensor) -> Any:
        return self.after(self.logits(self.middle(self.symbols(seen))))


def test_layers_that_share_weights_stay_together() -> None:
    assert cut(Tied()).names == ["symbols", "after"]


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(functional.dropout(self.first(x), 0.5, self.training))


class Branching(Functional):
    def forward(self, x: torch.Tensor) -> Any:
        return self.second(x) if x.sum() > 0 else self.second(self.first(x))


class TwoInputs(Functional):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.second(self.first(x) + y)


class TwoOutputs(Functional):
    def forward(self, x: torch.Tensor) -> Any:
        return self.first(x), self.second(x)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Functional(), "calls other things in training than in evaluation"),
        (Branching(), "torch.fx cannot follow its forward()"),
        (Branching(), "returns them as a list (its own layers are model.first, model.second)"),
        (TwoInputs(), "uses 2 inputs"),
        (TwoOutputs(), "returns a tuple"),
    ],
)
def test_a_model_that_is_no_chain_is_refused(model: nn.Module, words: str) -> None:
    assert words in refusal(model)


def test_a_task_may_list_the_layers_itself() -> None:
    chain = cut(Functional(), lambda model: [model.first, model.second])
    assert chain.names == ["first", "second"]
    x = torch.rand(3, 4)
    torch.testing.assert_close(chain.part(0, 2)(x), chain.model.second(chain.model.first(x)))


@pytest.mark.parametrize(
    ("links", "words"),
    [
        (lambda model: [model.first, nn.Linear(4, 2)], "something else than layers of its model"),
        (lambda _: [], "something else than layers of its model"),
        (lambda _: 7, "something else than layers of its model"),
        (lambda model: [model.first, model.second, model.first], "first.weight belongs to two"),
        (lambda model: [model.first], "leaves out weights of its model: second.weight"),
    ],
)
def test_a_list_of_other_layers_is_refused(links: Callable[[nn.Module], Any], words: str) -> None:
    assert words in refusal(Functional(), links)


class Three(hvdtrain.Task):
    """A model of three layers, of which some are listed in some order, and a measure of its output."""

    framework = "torch"
    places: Sequence[int] = (0, 1, 2)
    penalty = False

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))

    def stages(self, model: Any) -> list[nn.Module]:
        return [model[place] for place in self.places]

    def measure(self, model: Any, batch: Any) -> dict[str, torch.Tensor]:
        loss = model(batch["x"]).sum(1)
        return {"loss": loss + sum(p.sum() for p in model.parameters()) if self.penalty else loss}

    def open_data(self, data: Any) -> Any:
        raise NotImplementedError

    decode = build_optimizer = open_data


def timed(task: Three) -> None:
    features = {"x": np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)}
    link_times(task, chain_of(task, task.build_model()), "fp32", features, torch.device("cpu"))


def test_layers_that_compute_something_else_are_refused() -> None:
    task = Three()
    timed(task)
    for places in ((0, 2), (2, 1, 0)):
        task.places = places
        with pytest.raises(UsageError, match="do not compute what its model computes"):
            timed(task)


def test_a_measure_that_needs_the_whole_model_is_refused_before_training() -> None:
    task = Three()
    task.penalty = True
    with pytest.raises(UsageError, match="uses 'parameters' of the model"):
        timed(task)


def test_a_tensor_that_forward_makes_is_no_difference_between_training_and_evaluation() -> None:
    """torch.fx keeps it in the model, by another name each time that it follows forward()."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places, self.out = nn.Embedding(9, 4), nn.Embedding(5, 4), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(torch.tanh(self.words(x) + self.places(torch.arange(5))))  # type: ignore[no-any-return]

    class Noisy(Positions):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + torch.randn(2)

    class Halved(Positions):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * torch.tensor(0.5 if self.training else 1.0)

    for other in (Noisy(), Halved()):
        with pytest.raises(UsageError, match="calls other things in training than in"):
            chain_of(TorchDigits(), other)
    model = Positions()
    before = set(model.state_dict())
    chain = chain_of(TorchDigits(), model)
    x = torch.randint(9, (3, 5))
    whole = chain.part(0, len(chain.names))
    torch.testing.assert_close(whole(x), model(x))
    assert set(model.state_dict()) == before
