"""Whole runs of one process on the GPU: each precision, memory, resume, stages, compiled kernels, layouts, and the
doctor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.gpu import on_gpu, trained
from support.runs import lines_of, result_of

EPOCHS = ("--epochs", "10")
ACCURACY = 0.9


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_digits_are_learned_in_each_precision(precision: str, tmp_path: Path) -> None:
    result = result_of(trained(tmp_path / "run", *EPOCHS, "--precision", precision))
    assert result["status"] == "finished"
    assert result["metrics"]["accuracy"] > ACCURACY


def test_the_memory_of_the_gpu_is_in_the_result_and_in_the_metrics(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", "--max-steps", "20")
    [used] = result_of(folder)["memory_bytes"]["device"]
    assert 2**18 < used < torch.cuda.get_device_properties(0).total_memory
    assert lines_of(folder, split="train")[-1]["device_memory"]


def test_a_run_that_stopped_goes_on_and_ends_with_the_weights_of_one_that_did_not(tmp_path: Path) -> None:
    words = ("--epochs", "2", "--deterministic", "true")
    whole = result_of(trained(tmp_path / "whole", *words))
    part = trained(tmp_path / "part", *words, "--max-steps", "20")
    assert result_of(part)["steps"] == 20
    assert result_of(trained(part, *words))["weights"]["sha256"] == whole["weights"]["sha256"]


def test_stages_on_one_gpu_train_as_the_whole_model_does(tmp_path: Path) -> None:
    words = ("--max-steps", "20", "--optimizer", "sgd")
    whole = result_of(trained(tmp_path / "whole", *words))
    stages = ("--parallel.stages", "2", "--parallel.devices", "cuda:0,cuda:0", "--parallel.micro-batches", "2")
    divided = result_of(trained(tmp_path / "stages", *words, *stages))
    assert divided["metrics"]["loss"] == pytest.approx(whole["metrics"]["loss"], rel=1e-3)


NORMALIZED = """
import torch
from hvdtrain.tasks.torch import TorchDigits

class Task(TorchDigits):
    def build_model(self):
        layers = torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten()
        return torch.nn.Sequential(*layers, torch.nn.Linear(512, 10))
"""


@pytest.mark.parametrize("option", ["--channels-last", "--sync-batch-norm"])
def test_a_layout_and_the_statistics_of_all_ranks_train_as_without_them(option: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(NORMALIZED)
    words = ("--task", "own:Task", "--epochs", "3")
    plain = result_of(trained(tmp_path / "plain", *words))
    other = result_of(trained(tmp_path / "other", *words, option, "true"))
    assert other["metrics"]["loss"] == pytest.approx(plain["metrics"]["loss"], rel=0.05)


def test_the_memory_of_the_gpu_is_in_the_heartbeat_and_in_top(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", "--max-steps", "20")
    beat = json.loads((folder / "heartbeats" / "rank_0.json").read_text())
    assert 2**18 < beat["gpu_memory"] < torch.cuda.get_device_properties(0).total_memory
    assert beat["gpu_use"] is None or 0 <= beat["gpu_use"] <= 1
    assert "GPU" in on_gpu(["top", str(folder), "--once"], tmp_path).stdout


UNSYNCHRONIZED = """
import torch
from hvdtrain.tasks.torch import TorchDigits

class Task(TorchDigits):
    batches = 0

    def measure(self, model, batch):
        Task.batches += 1  # the first ones allocate memory, and the last one is read
        if Task.batches in (5, 15):
            torch.cuda.set_sync_debug_mode("error" if Task.batches == 5 else "default")
        return super().measure(model, batch)
"""


def test_no_step_waits_for_the_gpu(tmp_path: Path) -> None:
    """PyTorch raises an error where the host would wait: for a copy, or for the value of a tensor."""
    (tmp_path / "own.py").write_text(UNSYNCHRONIZED)
    words = ("--task", "own:Task", "--max-steps", "20", "--log-interval", "20")
    assert result_of(trained(tmp_path / "run", *words))["steps"] == 20


def test_compiled_kernels_train(tmp_path: Path) -> None:
    result = result_of(trained(tmp_path / "run", *EPOCHS, "--compile", "true"))
    assert result["metrics"]["accuracy"] > ACCURACY


def test_the_doctor_sees_the_gpu_and_nccl(tmp_path: Path) -> None:
    ended = on_gpu(["doctor"], tmp_path)
    assert torch.cuda.get_device_name(0) in ended.stdout, ended
    assert "nccl" in ended.stdout, ended
