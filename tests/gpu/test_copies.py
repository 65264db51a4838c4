"""Copies between host and GPU: batches from pinned memory, and a checkpoint's on a stream of its own."""

from __future__ import annotations

import numpy as np
import torch

from hvdtrain.adapters.torch.tensor_arrays import assign, host_copies, to_array

# A kernel's worth of waiting for the GPU, a few tenths of a second.
CYCLES = 400_000_000


def test_a_checkpoints_copies_wait_for_the_update_that_was_queued_before(gpu: torch.device) -> None:
    weights = torch.zeros(1 << 20, device=gpu)
    torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
    weights.add_(1)
    with host_copies(gpu) as copy:
        array = copy(weights)
    assert np.array_equal(array, np.ones(1 << 20, np.float32))


def test_what_is_queued_meanwhile_does_not_wait_for_the_copies(gpu: torch.device) -> None:
    weights, other = torch.ones(1 << 26, device=gpu), torch.zeros(1, device=gpu)
    to_array(weights)  # memory that is pinned once is used again
    torch.cuda.synchronize(gpu)
    computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
    with host_copies(gpu) as copy:
        array = copy(weights)
        other.add_(1)
        computed.record(torch.cuda.current_stream(gpu))
        computed.synchronize()
        assert other.item() == 1
    assert array.sum() == 1 << 26


def test_memory_of_a_former_copy_is_used_again_and_is_pinned(gpu: torch.device) -> None:
    weights = torch.arange(1000.0, device=gpu)
    with host_copies(gpu) as copy:
        first = copy(weights)
    assert torch.from_numpy(first).is_pinned()
    weights.mul_(2)
    with host_copies(gpu) as copy:
        second = copy(weights, into=first)
    assert second.ctypes.data == first.ctypes.data
    assert np.array_equal(second, np.arange(1000.0, dtype=np.float32) * 2)


def test_numbers_of_half_precision_come_and_go_as_they_are(gpu: torch.device) -> None:
    weights = torch.linspace(-3, 3, 100, device=gpu).to(torch.bfloat16)
    target = torch.zeros_like(weights)
    assign(target, to_array(weights))
    assert torch.equal(target, weights)
