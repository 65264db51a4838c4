"""Whole runs of one process on the GPU: each precision, memory, resume, stages, compiled kernels, and the doctor."""

from __future__ import annotations

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


def test_compiled_kernels_train(tmp_path: Path) -> None:
    result = result_of(trained(tmp_path / "run", *EPOCHS, "--compile", "true"))
    assert result["metrics"]["accuracy"] > ACCURACY


def test_the_doctor_sees_the_gpu_and_nccl(tmp_path: Path) -> None:
    ended = on_gpu(["doctor"], tmp_path)
    assert torch.cuda.get_device_name(0) in ended.stdout, ended
    assert "nccl" in ended.stdout, ended
