"""The parts of a step, timed by the GPU's own events, while the host is ahead of it."""

from __future__ import annotations

import time

import pytest
import torch

from hvdtrain.adapters.step_timer import BACKWARD, FORWARD, HOST_TO_DEVICE, OPTIMIZER, PARTS
from hvdtrain.adapters.torch.gpu_step_timer import GpuStepTimer

CYCLES = 100_000_000  # some hundredths of a second on a GPU of 1 to 2 GHz
STEPS = 3


def step(timer: GpuStepTimer, forward: int, backward: int) -> None:
    timer.begin()
    timer.end(HOST_TO_DEVICE)
    torch.cuda._sleep(forward)  # type: ignore[no-untyped-call]
    timer.end(FORWARD)
    torch.cuda._sleep(backward)  # type: ignore[no-untyped-call]
    timer.end(BACKWARD)
    timer.end_wait()
    timer.end(OPTIMIZER)
    timer.end_step()


def test_a_part_takes_as_long_as_its_kernels_and_the_host_does_not_wait(gpu: torch.device) -> None:
    timer = GpuStepTimer()
    torch.cuda._sleep(1000)  # type: ignore[no-untyped-call]  # the first kernel loads the module
    torch.cuda.synchronize(gpu)
    begun = time.perf_counter()
    for _ in range(STEPS):
        step(timer, CYCLES, 2 * CYCLES)
    queued = time.perf_counter() - begun
    torch.cuda.synchronize(gpu)
    computed = time.perf_counter() - begun
    told = dict(zip(PARTS, timer.take(), strict=True))
    assert queued < computed / 2
    assert told["backward"] == pytest.approx(2 * told["forward"], rel=0.2)
    assert told["forward"] + told["backward"] == pytest.approx(computed, rel=0.2)
    assert told["optimizer"] < told["forward"] / 10
