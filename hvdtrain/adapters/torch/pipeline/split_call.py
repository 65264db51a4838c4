"""What a task's measure() calls in place of a model that is cut: it gives away the input, or returns the output."""

from typing import Any, NoReturn

import torch
from torch import nn

from hvdtrain.errors import UsageError
from hvdtrain.task.task import Task


class _Captured(BaseException):
    """Leaves measure() at its call of the model; no `Exception`, which a task may catch."""

    def __init__(self, entering: torch.Tensor) -> None:
        super().__init__()
        self.entering = entering


class _Capture(nn.Module):
    """Has the layers of the first stage, so that a task may look in which order they want the input."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, *inputs: Any, **options: Any) -> NoReturn:
        if len(inputs) != 1 or options or not isinstance(inputs[0], torch.Tensor):
            raise UsageError(
                f"The task's measure() calls the model with {len(inputs) + len(options)} arguments.",
                "What goes through the stages of a pipeline is one tensor.",
                "call it with one tensor, or leave --parallel.stages out.",
            )
        raise _Captured(inputs[0])

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise _not_whole(name) from None


def captured_input(task: Task, features: dict[str, torch.Tensor], part: nn.Module) -> torch.Tensor:
    """The tensor with which `measure` calls the model.

    Raises `UsageError`: it does not call it, or with something else.
    """
    try:
        task.measure(_Capture(part), features)
    except _Captured as captured:
        return captured.entering
    raise UsageError(
        "The task's measure() does not call the model.",
        "With --parallel.stages, what it is called with goes through the stages.",
        "call the model in measure(), or leave --parallel.stages out.",
    )


def _not_whole(name: str) -> UsageError:
    return UsageError(
        f"The task's measure() uses {name!r} of the model.",
        "With --parallel.stages a process may have a part of the model only, which can be called and nothing else.",
        "call the model, and compute the loss from what it returns.",
    )


class GivenOutput:
    """Returns what the last stage has returned."""

    def __init__(self, leaving: torch.Tensor) -> None:
        self._leaving: torch.Tensor | None = leaving

    def __call__(self, *_: Any, **__: Any) -> torch.Tensor:
        leaving, self._leaving = self._leaving, None
        if leaving is None:
            raise UsageError(
                "The task's measure() calls the model more than once.",
                "A batch goes through the stages of a pipeline once.",
                "call it once, or leave --parallel.stages out.",
            )
        return leaving

    def __getattr__(self, name: str) -> NoReturn:
        raise _not_whole(name)
