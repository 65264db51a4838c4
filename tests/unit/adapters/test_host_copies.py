"""Copies from a GPU are queued behind the update and waited for once. A test has no GPU: its streams are recorded."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from hvdtrain.adapters.torch.tensor_arrays import host_copies


class Recorded:
    def __init__(self, happened: list[str]):
        self._happened = happened

    def wait_stream(self, other: str) -> None:
        self._happened.append(f"waits for {other}")

    def synchronize(self) -> None:
        self._happened.append("all ended")


@pytest.fixture
def happened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    happened: list[str] = []

    @contextlib.contextmanager
    def on(_: Recorded) -> Any:
        happened.append("copy")
        yield

    monkeypatch.setattr(torch.cuda, "Stream", lambda _: Recorded(happened))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: "the update")
    monkeypatch.setattr(torch.cuda, "stream", on)
    return happened


def test_all_copies_are_waited_for_at_the_end(happened: list[str]) -> None:
    with host_copies(torch.device("cuda", 0)) as copy:
        arrays = [copy(torch.full((2,), float(number))) for number in range(2)]
    assert happened == ["waits for the update", "copy", "copy", "all ended"]
    assert [list(array) for array in arrays] == [[0.0, 0.0], [1.0, 1.0]]


def test_copies_end_before_an_error_is_raised(happened: list[str]) -> None:
    """Else a GPU would write into memory that is free already."""
    with pytest.raises(AttributeError), host_copies(torch.device("cuda", 0)) as copy:
        [copy(tensor) for tensor in (torch.zeros(2), None)]  # type: ignore[arg-type]
    assert happened[-1] == "all ended"


def test_on_a_cpu_memory_is_used_again() -> None:
    with host_copies(torch.device("cpu")) as copy:
        first = copy(torch.zeros(3))
        again, other_size = copy(torch.ones(3), first), copy(torch.ones(2), first)
    assert again.ctypes.data == first.ctypes.data
    assert (list(first), list(other_size)) == ([1.0, 1.0, 1.0], [1.0, 1.0])
