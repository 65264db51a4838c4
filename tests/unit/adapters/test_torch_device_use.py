"""What is told of a GPU, with a stand-in for its driver: this machine may have none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hvdtrain.adapters.torch import device
from hvdtrain.adapters.torch.device import gpu_use, memory_peak

GPU, CPU = torch.device("cuda", 1), torch.device("cpu")


def refuse(_: Any) -> None:
    raise RuntimeError("Insufficient Permissions")


def test_a_cpu_has_neither() -> None:
    assert memory_peak(CPU) is None
    assert gpu_use(CPU) is None


def test_the_memory_is_that_of_this_ranks_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda of: {GPU: 2**30}[of])
    assert memory_peak(GPU) == 2**30


@pytest.mark.parametrize(
    ("ask", "installed", "use"), [(lambda _: 87, True, 0.87), (lambda _: 87, False, None), (refuse, True, None)]
)
def test_how_busy_it_is_is_told_where_nvml_can_be_asked(
    ask: Any, installed: bool, use: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "find_spec", lambda name: installed and name == "pynvml" or None)
    monkeypatch.setattr(torch.cuda, "utilization", ask)
    assert gpu_use(GPU) == use
