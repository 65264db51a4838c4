"""`--virtual-workers` refuses a model whose pass depends on more than weights, records and seed, before any update."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.commands import Forker, run_python
from support.digits_runs import digits_pattern, flip

TORCH = """
import random
import numpy as np
import torch
from torch.utils.checkpoint import checkpoint
from hvdtrain.task.splits import Splits
from hvdtrain.tasks.torch import TorchDigits

OWN = np.random.default_rng(7)

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.passes, self.words = 0, torch.nn.Embedding(17, 1, max_norm=0.1)
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("hidden", torch.zeros(8, 8), persistent=False)

    def forward(self, images):
        self.passes += 1
        training = self.training
        return images + (EXPRESSION)

class Task(TorchDigits):
    def build_model(self):
        self.model = torch.nn.Sequential(Layer(), torch.nn.Flatten(), torch.nn.Linear(64, 10))
        return self.model

class Unvalidated(Task):
    def open_data(self, data):
        return Splits(super().open_data(data).train)

class Changing(Task):
    def callbacks(self):
        return [lambda event: self.model[0].mean.fill_(1.0) if type(event).__name__ == "StepEnded" else None]
"""
TENSORFLOW = """
import random
import keras
import numpy as np
import tensorflow as tf
from hvdtrain.tasks.keras import KerasDigits

OWN = np.random.default_rng(7)

class Layer(keras.layers.Layer):
    passes = 0

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
        self.mean = self.add_weight(shape=(), initializer="zeros", trainable=False, name="mean")

    def call(self, images, training=None):
        self.passes += 1
        return images + (EXPRESSION)

class Task(KerasDigits):
    def build_model(self):
        self.layer = Layer()
        return keras.Sequential([keras.Input((8, 8, 1)), self.layer, keras.layers.Flatten(), keras.layers.Dense(10)])

class Changing(Task):
    def callbacks(self):
        return [lambda event: self.layer.mean.assign(1.0) if type(event).__name__ == "StepEnded" else None]
"""
DRAWS = "the task draws random numbers from "
DIFFER = "the same pass, made again with the same weights, records and seeds, gave different gradients (of "
REFUSED = {
    "np.random.rand()": f"{DRAWS}numpy.random",
    "random.random()": f"{DRAWS}Python's random",
    "OWN.random()": DIFFER,
    "self.passes": DIFFER,
}
EVALUATED = "0 if training else "
EVALUATIONS_DIFFER = "the same evaluation, made again, gave different measures ("
CHANGES_WEIGHTS = "the model changes weights in its forward pass"
IN_GRAPHS = {
    "tf.random.uniform([])": DIFFER,
    # It changes none before the weight is large.
    "0 * self.scale.assign(tf.cond(self.scale > 5, lambda: self.scale * 0.9, lambda: self.scale))": CHANGES_WEIGHTS,
    f"{EVALUATED}tf.random.uniform([8, 8, 1])": EVALUATIONS_DIFFER,
    f"{EVALUATED}self.mean.assign_add(1.0)": "/layer/mean' in evaluation",
}
TORCH_REFUSED = {
    f"{EVALUATED}torch.tensor(np.random.rand(8, 8)).float()": f"{DRAWS}numpy.random in evaluation",
    f"{EVALUATED}torch.tensor(OWN.random((8, 8))).float()": EVALUATIONS_DIFFER,
    f"{EVALUATED}self.mean.add_(1.0)": "the model changes '0.mean' in evaluation",
    f"{EVALUATED}self.hidden.add_(1.0)": EVALUATIONS_DIFFER,
    "torch.set_num_threads(torch.get_num_threads() + 1) or 0": "torch computes with",
    "self.words((images * 16).long()).squeeze(-1)": CHANGES_WEIGHTS,
    "(torch.no_grad()(self.words.weight.mul_)(0.9).sum() * 0 if self.passes > 4 else 0)": CHANGES_WEIGHTS,
    "checkpoint(torch.sin, images + self.words.weight.sum(), use_reentrant=True)": "use_reentrant=",
    "setattr(self, 'mean', torch.ones([2] * (self.passes // 3))) or 0": "has made, removed or reshaped a buffer",
    "setattr(self, 'mean', images.mean((1, 2, 3)).detach()) or 0": "has made, removed or reshaped a buffer",
}


HOOKED = """
def halve(parameter):
    parameter.grad = parameter.grad * 0.5

class Hooked(Task):
    def build_model(self):
        model = super().build_model()
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(halve)
        return model
"""
PROGRAM = """
import os
for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):  # of other tests
    os.environ.pop(name, None)
from hvdtrain.cli.main import main
for argv in CALLS:
    print("code", main(argv), flush=True)
"""
OPTIONS = ["--virtual-workers", "2", "--progress", "none", "--max-steps", "2"]


@pytest.mark.parametrize("expression", [*REFUSED, *TORCH_REFUSED])
def test_in_torch(expression: str, forker: Forker, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(TORCH.replace("EXPRESSION", expression))
    alone = ["--virtual-workers", "1"] if "self.passes // 3" in expression else []  # no other's buffers are put there
    ended = forker.run(["--task", "own:Task", *OPTIONS, *alone, "--output-dir", "out"], tmp_path)
    assert ended.code == 2, ended
    assert (REFUSED | TORCH_REFUSED)[expression] in ended.stderr, ended.stderr
    assert "HINT: " in ended.stderr
    assert not list((tmp_path / "out").rglob("*.safetensors"))


def test_callbacks_in_torch_leave_buffers_as_they_are(forker: Forker, tmp_path: Path) -> None:
    """Another worker's buffers are in the model on each number of workers."""
    (tmp_path / "own.py").write_text(TORCH.replace("EXPRESSION", "0"))
    ended = forker.run(["--task", "own:Changing", *OPTIONS, "--output-dir", "out"], tmp_path)
    assert ended.code == 2, ended
    assert "a callback of the task has changed '0.mean' of the model at StepEnded" in ended.stderr, ended.stderr


def test_hooks_of_gradients_are_a_part_of_a_pass(forker: Forker, tmp_path: Path) -> None:
    program = TORCH.replace("EXPRESSION", "0") + HOOKED
    (tmp_path / "own.py").write_text(program)
    ended = forker.run(
        ["--task", "own:Hooked", *OPTIONS, "--check-workers", "every=1", "--output-dir", "out"], tmp_path
    )
    assert ended.code in (0, 75), ended


def test_fillers_of_damaged_records_are_no_draws(forker: Forker, tmp_path: Path) -> None:
    """Each virtual worker's records are read by themselves, and so is the batch that is compared with the first one."""
    for file in Path(digits_pattern("*")).parent.glob("*.tfrecord"):
        shutil.copy(file, tmp_path)
    flip(tmp_path / "train-00000-of-00004.tfrecord", 40)
    options = ["--data.dir", str(tmp_path), "--data.on-corrupt", "mask", "--global-batch-size", "1440"]
    options += ["--virtual-workers", "9"]
    ended = forker.run([*OPTIONS, *options, "--epochs", "1", "--output-dir", "out"], tmp_path)
    assert ended.code in (0, 75), ended


def test_evaluation_is_free_where_nothing_is_validated(forker: Forker, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(TORCH.replace("EXPRESSION", f"{EVALUATED}1 / 0"))
    ended = forker.run(["--task", "own:Unvalidated", *OPTIONS, "--output-dir", "out"], tmp_path)
    assert ended.code in (0, 75), ended


def test_in_tensorflow(tmp_path: Path) -> None:
    """Python code runs where a graph is made of it: its numbers would be other constants in other graphs. All in
    one new process, as virtual workers choose the number of threads before TensorFlow starts."""
    refused = REFUSED | IN_GRAPHS
    for number, expression in enumerate(refused):
        (tmp_path / f"own{number}.py").write_text(TENSORFLOW.replace("EXPRESSION", expression))
    tasks = [f"own{number}:Task" for number in range(len(refused))]
    (tmp_path / "own.py").write_text(TENSORFLOW.replace("EXPRESSION", "0"))
    tasks.append("own:Changing")
    refused["0"] = "a callback of the task has changed"
    calls = [["--task", task, *OPTIONS, "--output-dir", f"out{number}"] for number, task in enumerate(tasks)]
    program = PROGRAM.replace("CALLS", repr(calls))
    ended = run_python(["-c", program], tmp_path)
    codes = [line for line in ended.stdout.splitlines() if line.startswith("code ")]
    assert codes == ["code 2"] * len(refused), ended
    *_, last = ended.stderr.partition("hvdtrain: --virtual-workers")
    for told, fact in zip(last.split("hvdtrain: --virtual-workers"), refused.values(), strict=True):
        assert fact in told, ended.stderr
    assert not list(tmp_path.rglob("*.safetensors"))
