"""An optimizer of another package: a rule, written once, with which `--optimizer` trains equally in both frameworks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.added_packages import install

RULES = '''
from hvdtrain.algorithms.update_rules import Optimizer

def _lion(operations, settings, weight, gradient, slots, corrected):
    """Chen et al. 2023, arXiv:2302.06675."""
    average = slots["exp_avg"]
    seen = settings.beta1 * average + (1 - settings.beta1) * gradient
    kept = settings.beta2 * average + (1 - settings.beta2) * gradient
    return operations.sign(seen) + settings.weight_decay * weight, {"exp_avg": kept}

lion = Optimizer(_lion, ("exp_avg",), {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0})
no_rule = "lion"
'''
POINTS = "[hvdtrain.optimizers]\nlion = house_of_lion:lion\nno-rule = house_of_lion:no_rule\n"

TRAINING = """
import numpy as np, keras, tensorflow as tf, torch
from data_sharding import LoadedBatch
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.run.start import open_adapter
from hvdtrain.task.task import Task
from hvdtrain.topology import Topology

class Linear(Task):
    def open_data(self, data): raise NotImplementedError
    def decode(self, records): raise NotImplementedError
    def build_optimizer(self, model, lr): raise NotImplementedError

class InTorch(Linear):
    framework = "torch"
    def build_model(self): return torch.nn.Linear(3, 2)
    def measure(self, model, batch): return {"loss": (model(batch["x"]) - batch["y"]).square().sum(1)}

class InKeras(Linear):
    framework = "tensorflow"
    def build_model(self): return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    def measure(self, model, batch): return {"loss": tf.reduce_sum(tf.square(model(batch["x"]) - batch["y"]), 1)}

random = np.random.default_rng(0)
kernel, bias = random.normal(size=(3, 2)).astype(np.float32), random.normal(size=2).astype(np.float32)
options = TrainingOptions(optimizer="lion", beta2=0.95, weight_decay=0.1, max_grad_norm=1.0)
here, there = (open_adapter(task, Topology.single(), 1, 0.01, options) for task in (InTorch(), InKeras()))
with torch.no_grad():
    here.model.weight.copy_(torch.from_numpy(kernel.T.copy()))
    here.model.bias.copy_(torch.from_numpy(bias))
there.model.set_weights([kernel, bias])
for step in range(5):
    features = {"x": random.normal(size=(8, 3)).astype(np.float32), "y": random.normal(size=(8, 2)).astype(np.float32)}
    batch = LoadedBatch(step, np.arange(8), np.ones(8, np.float32), features, 8.0)
    for adapter in (here, there):
        adapter.train_step(batch, step, 0.01)
moved, moved_bias = there.model.get_weights()
np.testing.assert_allclose(here.model.weight.detach().numpy().T, moved, rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(here.model.bias.detach().numpy(), moved_bias, rtol=1e-5, atol=1e-6)
assert np.abs(moved - kernel).min() > 0.005
print(sorted(name for name in here.state() if name.startswith("optimizer/")))
"""


@pytest.fixture
def package(tmp_path: Path) -> dict[str, str]:
    """An installed package with two entry points; returns the environment in which it is."""
    return {**os.environ, **install(tmp_path, "house-of-lion", RULES, POINTS)}


def run(package: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, *arguments]
    return subprocess.run(argv, env=package, capture_output=True, text=True, timeout=240, check=False)


def test_both_frameworks_train_by_it_and_agree(package: dict[str, str]) -> None:
    done = run(package, "-c", TRAINING)
    assert done.returncode == 0, done.stderr
    slots = [f"optimizer/{name}/{slot}" for name in ("bias", "weight") for slot in ("exp_avg", "step#number")]
    assert done.stdout.splitlines()[-1] == str(slots)


def test_the_command_knows_its_name_and_its_settings(package: dict[str, str], tmp_path: Path) -> None:
    train = ("-m", "hvdtrain", "--task", "digits", "--max-steps", "2", "--output-dir", str(tmp_path / "run"))
    done = run(package, *train, "--optimizer", "lion", "--beta1", "0.8")
    assert done.returncode == 0, done.stderr
    assert "lion (beta1 0.8, beta2 0.99, weight decay 0)" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--optimizer", "lyon"], "did you mean 'lion'? Valid: adam, adamw, lamb, lars, lion, no-rule, sgd."),
        (["--optimizer", "lion", "--momentum", "0.9"], "--momentum 0.9 is given with --optimizer lion."),
        (["--optimizer", "no-rule"], "'no-rule' of hvdtrain.optimizers is an instance of str."),
    ],
)
def test_what_is_refused(package: dict[str, str], options: list[str], message: str) -> None:
    done = run(package, "-m", "hvdtrain", "--dry-run", *options)
    assert done.returncode == 2
    assert message in done.stderr
