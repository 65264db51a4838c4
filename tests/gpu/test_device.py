"""Which GPU a worker computes on, what it is told of its memory, and which arithmetic its kernels use."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.commands import run_python
from support.gpu import visible

from hvdtrain.adapters.torch.device import (
    apply_settings,
    bind_device_and_threads,
    device_memory,
    device_named,
    gpu_use,
    low_precision,
    memory_peak,
    own_device,
)
from hvdtrain.errors import UsageError

DEVICE = "from hvdtrain.adapters.torch.device import own_device; print(own_device())"


@pytest.fixture(autouse=True)
def settings_as_before() -> object:
    """Threads and kernels are settings of the process."""
    threads, current = torch.get_num_threads(), torch.cuda.current_device()
    yield
    torch.set_num_threads(threads)
    torch.cuda.set_device(current)
    apply_settings("fp32", False, torch.device("cuda", current))


def test_a_worker_computes_on_the_gpu_of_its_local_rank() -> None:
    gpus = torch.cuda.device_count()
    for local_rank in range(gpus):
        bind_device_and_threads(local_rank, gpus)
        assert own_device() == torch.device("cuda", local_rank)
        assert torch.ones(1, device="cuda").device.index == local_rank


def test_the_one_gpu_that_a_launcher_left_visible_is_number_0() -> None:
    if torch.cuda.device_count() > 1:
        pytest.skip("this process sees several GPUs")
    bind_device_and_threads(3, 4)
    assert own_device() == torch.device("cuda", 0)


@pytest.mark.parametrize(("shown", "device"), [(None, "cuda:0"), ("", "cpu")])
def test_only_visible_gpus_count(shown: str | None, device: str, tmp_path: Path) -> None:
    env = visible() if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    ended = run_python(["-c", DEVICE], tmp_path, env)
    assert ended.stdout.strip() == device, ended


def test_a_gpu_that_is_not_there_is_refused_by_name() -> None:
    name = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(UsageError, match=name):
        device_named(name)
    assert device_named("cuda:0") == torch.device("cuda", 0)


def test_the_memory_is_that_of_the_gpu(gpu: torch.device) -> None:
    assert device_memory() == torch.cuda.get_device_properties(gpu).total_memory
    before = memory_peak(gpu)
    tensor = torch.empty(2**26, dtype=torch.uint8, device=gpu)
    after = memory_peak(gpu)
    assert before is not None
    assert after is not None
    assert after >= 2**26
    assert after >= before
    assert tensor.numel() == 2**26


def test_how_busy_the_gpu_is_is_a_share_or_unknown(gpu: torch.device) -> None:
    use = gpu_use(gpu)
    assert use is None or 0 <= use <= 1


def test_float32_is_float32_unless_tf32_is_asked_for(gpu: torch.device) -> None:
    """1 + 2**-12 needs 12 bits of mantissa, and TF32 has 10."""
    left = torch.full((256, 256), 1 + 2**-12, device=gpu)
    right = torch.eye(256, device=gpu)
    apply_settings("fp32", False, gpu)
    assert torch.equal(left @ right, left)
    if torch.cuda.get_device_capability(gpu) >= (8, 0):
        apply_settings("tf32", False, gpu)
        assert torch.equal(left @ right, torch.ones_like(left))


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_a_forward_pass_computes_in_the_asked_precision(gpu: torch.device, precision: str, dtype: torch.dtype) -> None:
    layer = torch.nn.Linear(8, 8, device=gpu)
    with low_precision(precision, gpu):  # type: ignore[arg-type]
        assert layer(torch.ones(2, 8, device=gpu)).dtype == dtype
    assert layer.weight.dtype == torch.float32
