"""Where a model can be cut into stages, and that the stages compute all that it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hvdtrain.adapters.torch.pipeline.chain import chain_of
from hvdtrain.adapters.torch.pipeline.cuts import chosen_cuts
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.errors import UsageError
from hvdtrain.tasks.torch import TorchDigits

FEATURES = TorchDigits().example()


class Given(TorchDigits):
    """A task with the given model, and perhaps a list of its layers."""

    def __init__(self, model: nn.Module, listed: bool = False) -> None:
        super().__init__()
        self._model, self._listed = model, listed

    def build_model(self) -> nn.Module:
        return self._model

    def stages(self, model: Any) -> list[nn.Module] | None:
        return list(model.children()) if self._listed else None


class Layers(nn.Module):
    """Two layers for digits; how the second one is reached is left to classes below it."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.first, self.second = nn.Flatten(), nn.Linear(FEATURES["image"][0].size, 8), nn.Linear(8, 10)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(self.between(self.first(self.flat(x))))


def cuts(task: Given, **parallel: Any) -> tuple[list[int], list[str]]:
    return chosen_cuts(task, TrainingOptions(parallel=ParallelOptions(2, **parallel)), FEATURES, 2)


class Calling(Layers):
    def __call__(self, x: torch.Tensor) -> Any:
        return 2 * super().__call__(x)


def hooked(register: str) -> Layers:
    model = Layers()
    getattr(model, register)(lambda *_: None)
    return model


def patched() -> Layers:
    model = Layers()
    model.forward = lambda x: model.second(model.first(model.flat(x))) * 0.1  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: hooked("register_forward_hook"), "it has a hook"),
        (lambda: hooked("register_forward_pre_hook"), "it has a hook"),
        (lambda: hooked("register_full_backward_hook"), "it has a hook"),
        (lambda: hooked("register_full_backward_pre_hook"), "it has a hook"),
        (patched, "it has a forward() of its own"),
        (Calling, "it has a __call__() of its own"),
    ],
)
def test_what_is_done_around_forward_is_refused(build: Callable[[], Layers], words: str, listed: bool) -> None:
    """No stage would do it: another model would be trained."""
    with pytest.raises(UsageError, match="cannot be cut") as refused:
        cuts(Given(build(), listed))
    assert words in str(refused.value)


def test_hooks_of_layers_stay() -> None:
    model = Layers()
    model.second.register_forward_hook(lambda _module, _inputs, output: 0.1 * output)
    chain = chain_of(Given(model), model)
    x = torch.from_numpy(FEATURES["image"])
    torch.testing.assert_close(chain.part(0, len(chain.names))(x), model(x), rtol=0, atol=0)


class Doubling(Layers):
    """Its forward() does more in training."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x if self.training else x


class Dropping(Layers):
    """Draws random numbers in a layer, which the list of layers has."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 10))  # type: ignore[assignment]


def test_listed_layers_compute_the_same_in_training_too() -> None:
    with pytest.raises(UsageError, match="do not compute what its model computes"):
        cuts(Given(Doubling(), listed=True))
    model = Dropping()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert len(cuts(Given(model, listed=True))[0]) == 1
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


class Chunked(Layers):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(torch.relu(x).chunk(2, 1), 1)


class Largest(Layers):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.max(x, 1, keepdim=True).values


@pytest.mark.parametrize("model", [Chunked(), Largest()], ids=["a tuple", "a named tuple"])
def test_no_stage_begins_where_no_tensor_is_passed(model: Layers) -> None:
    """Found by calling each link once; the other places stay."""
    starts, lines = cuts(Given(model))
    assert len(starts) == 1
    assert sum("ms a micro batch" in line for line in lines) == 2
    assert cuts(Given(model), cuts="second")[1][1].startswith("stage 1: second")


def test_a_tuple_is_no_place_by_name() -> None:
    with pytest.raises(UsageError, match="cannot be cut") as refused:
        cuts(Given(Chunked()), cuts="cat")
    places = refused.value.conflict
    assert "chunk" in places
    assert "cat" not in places


def test_a_deep_model_is_followed_at_once() -> None:
    """Each layer is looked at a few times, not once for each other one."""
    depth = 3000
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(depth)))
    model[depth - 1].weight = model[depth - 3].weight
    chain = chain_of(Given(model), model)
    assert len(chain.names) == depth - 2
    assert sum(len(chain.trained(link)) for link in range(depth - 2)) == 2 * depth - 1
