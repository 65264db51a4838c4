"""A picture or text task imports its own framework only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import Forker

SCRIPT = str(Path(__file__).parents[2] / "support" / "scripts" / "imports_of.py")
FRAMEWORKS = {
    "torch": ({"torch"}, ["tensorflow", "keras"]),
    "tensorflow": ({"tensorflow", "keras"}, ["torch", "torchvision"]),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_mnist_imports_neither_the_other_framework_nor_horovod_nor_torchvision(
    framework: str, mnist: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Its small network needs no torchvision either."""
    own, others = FRAMEWORKS[framework]
    argv = ["--task", "mnist", "--data.dir", str(mnist), "--framework", framework, "--max-steps", "1"]
    hidden = [*others, "horovod", "torchvision"]
    forker: Forker = request.getfixturevalue("forker" if framework == "torch" else "keras_forker")
    done = forker.run_python([SCRIPT, "--without", *hidden, "--", *argv, "--output-dir", "out"], tmp_path)
    assert done.code == 0, done
    modules = set(json.loads(done.stdout.splitlines()[-1]))
    assert modules & {"torch", "tensorflow", "keras", "horovod", "torchvision"} == own


def test_without_torchvision_its_models_are_refused(forker: Forker, mnist: Path, tmp_path: Path) -> None:
    argv = ["--task", "mnist", "--model", "resnet18", "--data.dir", str(mnist), "--framework", "torch"]
    done = forker.run_python([SCRIPT, "--without", "torchvision", "--", *argv], tmp_path)
    done.require_refusal("torchvision is not installed.", "--model cnn")


def test_without_pillow_photos_are_refused(forker: Forker, tmp_path: Path) -> None:
    argv = ["--task", "imagenet", "--model", "cnn", "--data.dir", str(tmp_path), "--framework", "torch"]
    done = forker.run_python([SCRIPT, "--without", "PIL", "--", *argv], tmp_path)
    done.require_refusal("Pillow is not installed.", "hvdtrain[pictures]")
