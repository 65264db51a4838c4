"""What stands for a model that is cut: measure() may call it once with one tensor, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hvdtrain.adapters.torch.pipeline.split_call import GivenOutput, captured_input
from hvdtrain.errors import UsageError
from hvdtrain.tasks.torch import TorchDigits

FEATURES = {"x": torch.arange(3.0)}
PART = nn.Linear(3, 2)


class Measuring(TorchDigits):
    def __init__(self, measure: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self._own = measure

    def measure(self, model: Any, batch: Any) -> Any:
        return self._own(model, batch)


def test_the_input_is_what_the_model_is_called_with() -> None:
    entering = captured_input(Measuring(lambda model, batch: {"loss": model(batch["x"] + 1)}), FEATURES, PART)
    torch.testing.assert_close(entering, FEATURES["x"] + 1)


def test_a_task_may_look_at_the_first_layers() -> None:
    def measure(model: nn.Module, batch: Any) -> Any:
        return model(batch["x"] * sum(1 for _ in model.parameters()))

    torch.testing.assert_close(captured_input(Measuring(measure), FEATURES, PART), 2 * FEATURES["x"])


@pytest.mark.parametrize(
    ("measure", "words"),
    [
        (lambda model, batch: model(batch["x"], batch["x"]), "with 2 arguments"),
        (lambda model, batch: model(batch["x"], mask=None), "with 2 arguments"),
        (lambda model, batch: model([batch["x"]]), "with 1 arguments"),
        (lambda _, batch: {"loss": batch["x"]}, "does not call the model"),
        (lambda model, batch: model.encoder(batch["x"]), "uses 'encoder' of the model"),
    ],
)
def test_other_calls_are_refused(measure: Callable[[Any, Any], Any], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        captured_input(Measuring(measure), FEATURES, PART)
    assert words in refused.value.fact


def test_the_output_is_given_once() -> None:
    given = GivenOutput(torch.ones(2))
    torch.testing.assert_close(given("anything"), torch.ones(2))
    with pytest.raises(UsageError, match="calls the model more than once"):
        given("anything")
    with pytest.raises(UsageError, match="uses 'parameters' of the model"):
        given.parameters()
