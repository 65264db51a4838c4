"""Trainings on two ranks that start from given weights, and what `hvdtrain export` then writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support.processes import run_command
from support.ranks import run_ranks
from support.runs import result_of

from hvdtrain.models.exchange import to_torch
from hvdtrain.tasks.torch import TorchDigits

pytestmark = pytest.mark.timeout(600)
# An update of this size changes no float32 of 0.1 or more by a bit.
NOTHING = ["--max-steps", "1", "--lr", "1e-30", "--task-args.width", "2", "--progress", "none"]
TRAIN = ["-m", "hvdtrain"]


@pytest.fixture(scope="module")
def old_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What PyTorch's ImageNet example leaves: a DistributedDataParallel's state_dict and more, in a .pth.tar."""
    torch.manual_seed(1)
    shapes = {name: tensor.shape for name, tensor in TorchDigits(width=2).build_model().state_dict().items()}
    state = {f"module.{name}": 0.1 + torch.rand(shape) for name, shape in shapes.items()}
    path = tmp_path_factory.mktemp("old") / "model_best.pth.tar"
    torch.save({"epoch": 90, "arch": "cnn", "best_acc1": torch.tensor(76.1), "state_dict": state}, path)
    return path


def test_weights_go_through_both_frameworks_unchanged(old_script: Path, tmp_path: Path) -> None:
    """Old script → torch on two ranks → TensorFlow on two ranks → state_dict: the same tensors."""

    def run(finished: Any) -> Any:
        assert finished.returncode == 0, finished.tail()
        return finished

    first = [*TRAIN, *NOTHING, "--output-dir", "first", "--init-weights", str(old_script)]
    run(run_ranks(["python", *first], 2, "mpirun", 240, cwd=tmp_path))
    second = [*TRAIN, *NOTHING, "--output-dir", "second", "--init-weights", "first", "--framework", "tensorflow"]
    run(run_ranks(["python", *second], 2, "mpirun", 240, cwd=tmp_path))
    for name in ("first", "second"):
        result = result_of(tmp_path / name)
        assert (result["world_size"], result["weights"]["equal_on_all_ranks"]) == (2, True)

    for folder in ("first", "second"):
        argv = ["export", folder, "--format", "state-dict", "--prefix", "module.", "--output", f"{folder}.pt"]
        run(run_command(["python", *TRAIN, *argv], 120, cwd=tmp_path))
        given = torch.load(old_script, weights_only=True)["state_dict"]
        exported = torch.load(tmp_path / f"{folder}.pt", weights_only=True)
        assert exported.keys() == given.keys()
        for name, tensor in given.items():
            assert torch.equal(exported[name], tensor), name
    run(run_command(["python", *TRAIN, "export", "second"], 120, cwd=tmp_path))
    for name, array in to_torch(load_file(tmp_path / "second/exports/step_00000001.safetensors")).items():
        np.testing.assert_array_equal(array, given[f"module.{name}"].numpy())

    first[first.index("--max-steps") + 1] = "2"  # goes on from its own checkpoint
    again = run(run_command(["python", *first[:-1], str(tmp_path / "gone.pt")], 120, cwd=tmp_path))
    assert "is not read: training continues from a checkpoint" in again.stdout, again.tail()


def test_weights_that_do_not_fit_are_refused_by_all(old_script: Path, tmp_path: Path) -> None:
    content = torch.load(old_script, weights_only=True)
    content["state_dict"]["module.fc.weight"] = content["state_dict"].pop("module.logits.weight")
    torch.save(content, tmp_path / "other.pth.tar")
    command = [*TRAIN, *NOTHING, "--output-dir", "run", "--init-weights", "other.pth.tar"]
    finished = run_ranks(["python", *command], 2, "mpirun", 240, cwd=tmp_path)
    assert finished.returncode == 2, finished.tail()
    assert finished.stderr.count("The weights in other.pth.tar do not fit the model.") == 1, finished.tail()
    assert "Missing: logits.weight; unexpected: fc.weight.\nHINT: build the model with" in finished.stderr
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
