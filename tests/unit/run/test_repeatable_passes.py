"""`--virtual-workers` refuses a model whose pass depends on more than weights, records and seed, before any update."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import Forker, run_python

TORCH = """
import random
import numpy as np
import torch
from hvdtrain.tasks.torch import TorchDigits

OWN = np.random.default_rng(7)

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.passes, self.words = 0, torch.nn.Embedding(17, 1, max_norm=0.1)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, images):
        self.passes += 1
        return images + (EXPRESSION)

class Task(TorchDigits):
    def build_model(self):
        return torch.nn.Sequential(Layer(), torch.nn.Flatten(), torch.nn.Linear(64, 10))
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

    def call(self, images):
        self.passes += 1
        return images + (EXPRESSION)

class Task(KerasDigits):
    def build_model(self):
        return keras.Sequential([keras.Input((8, 8, 1)), Layer(), keras.layers.Flatten(), keras.layers.Dense(10)])
"""
DRAWS = "the task draws random numbers from "
DIFFER = "the same pass, made again with the same weights, records and seeds, gave different gradients (of "
REFUSED = {
    "np.random.rand()": f"{DRAWS}numpy.random",
    "random.random()": f"{DRAWS}Python's random",
    "OWN.random()": DIFFER,
    "self.passes": DIFFER,
}
IN_GRAPHS = {"tf.random.uniform([])": DIFFER}
TORCH_REFUSED = {
    "self.words((images * 16).long()).squeeze(-1)": "the model changes weights in its forward pass",
    "setattr(self, 'mean', images.mean((1, 2, 3)).detach()) or 0": "has made, removed or reshaped a buffer",
}


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
    ended = forker.run(["--task", "own:Task", *OPTIONS, "--output-dir", "out"], tmp_path)
    assert ended.code == 2, ended
    assert (REFUSED | TORCH_REFUSED)[expression] in ended.stderr, ended.stderr
    assert "HINT: " in ended.stderr
    assert not list((tmp_path / "out").rglob("*.safetensors"))


def test_in_tensorflow(tmp_path: Path) -> None:
    """Python code runs where a graph is made of it: its numbers would be other constants in other graphs. All in
    one new process, as virtual workers choose the number of threads before TensorFlow starts."""
    refused = REFUSED | IN_GRAPHS
    for number, expression in enumerate(refused):
        (tmp_path / f"own{number}.py").write_text(TENSORFLOW.replace("EXPRESSION", expression))
    calls = [
        ["--task", f"own{number}:Task", *OPTIONS, "--output-dir", f"out{number}"] for number in range(len(refused))
    ]
    program = PROGRAM.replace("CALLS", repr(calls))
    ended = run_python(["-c", program], tmp_path)
    codes = [line for line in ended.stdout.splitlines() if line.startswith("code ")]
    assert codes == ["code 2"] * len(refused), ended
    *_, last = ended.stderr.partition("hvdtrain: --virtual-workers")
    for told, fact in zip(last.split("hvdtrain: --virtual-workers"), refused.values(), strict=True):
        assert fact in told, ended.stderr
    assert not list(tmp_path.rglob("*.safetensors"))
