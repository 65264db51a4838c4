"""Which weights stand for all of them, where an optimizer is timed on some."""

from __future__ import annotations

import pytest
import torch

from hvdtrain.adapters.torch.pipeline import layer_times
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.tasks.torch import TorchDigits

MIB = 2**20


def weights(*mebibytes: float) -> list[torch.Tensor]:
    return [torch.empty(int(one * MIB / 4)) for one in mebibytes]


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        ([1] * 20, [1] * 8),
        ([40, 0.001], [40]),  # more than is wanted, but a bias stands for nothing
        ([100, 1, 1, 1], [100]),
        ([16, 16, 16, 0.001, 0.001], [16]),
        ([0.5, 0.25], [0.5, 0.25]),
        ([3, 3, 3, 3, 0.001], [3, 3, 0.001]),
    ],
)
def test_they_are_like_most_of_the_bytes(sizes: list[float], chosen: list[float]) -> None:
    assert [round(one.nbytes / MIB, 3) for one in layer_times._some_of(weights(*sizes))] == chosen


def test_state_of_adam_and_of_plain_sgd() -> None:
    task = TorchDigits()
    for options, slots in (({"optimizer": "adam"}, 2), ({"optimizer": "sgd", "momentum": 0.0}, 0)):
        seconds, found = layer_times.update_times(task, TrainingOptions(**options), 0.1)
        assert seconds > 0
        assert found == pytest.approx(slots, abs=0.01)


def test_the_weights_stay() -> None:
    class Once(TorchDigits):
        """A task may build one model only."""

        def build_model(self) -> torch.nn.Module:
            self.model = vars(self).get("model") or super().build_model()
            return self.model

    task = Once()
    before = {name: value.clone() for name, value in task.build_model().state_dict().items()}
    layer_times.update_times(task, TrainingOptions(optimizer="adamw", weight_decay=0.1), 0.1)
    assert all(torch.equal(value, before[name]) for name, value in task.model.state_dict().items())
    assert all(p.grad is None for p in task.model.parameters())
