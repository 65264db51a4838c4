"""Models that do not fit into a memory limit as a whole: `--shard`, and what `hvdtrain plan` says.

The limit is a control group's, as Slurm, Kubernetes and Docker set it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes import run_command
from support.runs import read_json

OLD, NEW = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
NAMES = {OLD: ("memory.limit_in_bytes", "memory.max_usage_in_bytes"), NEW: ("memory.max", "memory.peak")}
TASK = """
import numpy as np
import torch
from torch import nn
from torch.nn import functional

import hvdtrain


class Wide(hvdtrain.Task):
    framework = "torch"
    defaults = hvdtrain.TaskDefaults(epochs=1, global_batch_size=16, lr=1e-4)

    def open_data(self, data):
        return hvdtrain.Splits(train=data.catalog("wide.npy"))

    def decode(self, records):
        return {"x": np.frombuffer(b"".join(records), np.float32).reshape(len(records), 16).copy()}

    def build_model(self):
        hidden = [layer for _ in range(40) for layer in (nn.ReLU(), nn.Linear(1000, 1000))]
        return nn.Sequential(nn.Linear(16, 1000), *hidden, nn.Linear(1000, 1))

    def build_optimizer(self, model, lr):
        return torch.optim.Adam(model.parameters(), lr=lr)

    def measure(self, model, batch):
        return {"loss": functional.mse_loss(model(batch["x"])[:, 0], batch["x"].sum(1), reduction="none")}
"""


@pytest.fixture
def group() -> Iterator[tuple[Path, str, str]]:
    """A control group of memory, and the files of its limit and its peak."""
    root = OLD if OLD.is_dir() else NEW
    folder = root / "hvdtrain-test"
    try:
        folder.mkdir(exist_ok=True)
        limit, peak = (folder / name for name in NAMES[root])
        limit.write_text("8000000000")
        int(peak.read_text())
    except (OSError, ValueError) as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield folder, limit.name, peak.name
    folder.rmdir()


def write_task(folder: Path) -> None:
    """40 million weights, which with gradients and Adam's state are 640 MB, and few records."""
    (folder / "wide_task.py").write_text(TASK)
    np.save(folder / "wide.npy", np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32))


def inside(group: Path, folder: Path, workers: str, *command: str) -> Any:
    """Start workers of the task in the control group."""
    launch = [
        "python",
        "-m",
        "hvdtrain",
        "launch",
        "local",
        "-np",
        workers,
        "--",
        command[0],
        "--task",
        "wide_task:Wide",
    ]
    words = shlex.join([*launch, "--data.dir", str(folder), *command[1:]])
    variables = {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    return run_command(["sh", "-c", f"echo $$ > {group}/cgroup.procs; exec {words}"], 180, variables, cwd=folder)


@pytest.mark.timeout(600)
def test_what_does_not_fit_as_a_whole_is_planned_in_parts(group: tuple[Path, str, str], tmp_path: Path) -> None:
    """Each of two workers has some 550 MB left beside its libraries: for the weights three times, or for a stage."""
    folder, limit, _ = group
    write_task(tmp_path)
    (folder / limit).write_text("1450000000")
    planned = inside(folder, tmp_path, "2", "plan", "--workers", "2", "--seconds", "1")
    assert planned.returncode == 0, planned.tail()
    assert "its parts were measured one after the other" in " ".join(planned.stdout.split()), planned.tail()
    plan = read_json(tmp_path / "plan" / "plan.json")
    assert plan["measured_in_parts"]
    assert plan["workload"]["slots"] == pytest.approx(2, rel=0.01)  # Adam
    ways = {way["name"]: way for way in plan["ways"]["2"]}
    assert not ways["ring"]["fits"]
    assert ways["pipeline 2"]["fits"]
    assert plan["recommended"]["2"] in ("pipeline 2", "naive split 2")
    chosen = inside(folder, tmp_path, "2", "train", "--parallel", "auto", "--dry-run")
    assert "hvdtrain: --parallel auto: " in chosen.stdout, chosen.tail()
    assert " 2 (2 workers)" in chosen.stdout, chosen.tail()


@pytest.mark.timeout(600)
def test_shards_fit_where_whole_state_does_not(group: tuple[Path, str, str], tmp_path: Path) -> None:
    folder, limit, peak = group
    write_task(tmp_path)
    # What is in the kernel's cache already is not counted again: else the first run would need a gigabyte more.
    libraries = "import torch, horovod.torch, hvdtrain.adapters.torch.adapter"
    assert run_command(["python", "-c", libraries], 180).returncode == 0

    def train(shard: str, out: str) -> Any:
        options = ["--shard", shard, "--output-dir", out, "--log-interval", "1", "--checkpoint-mode", "sync"]
        return inside(folder, tmp_path, "3", "train", "--report", "never", *options)

    finished = train("gradients", "first")
    assert finished.returncode == 0, finished.tail()
    needed = int((folder / peak).read_text())
    (folder / limit).write_text(str(int(0.97 * needed)))  # a part of it was the cache of files
    whole = train("none", "whole")
    assert whole.returncode != 0, f"{needed:,} bytes were enough\n{whole.tail()}"
    assert "SIGKILL" in whole.stderr, whole.tail()
    again = train("gradients", "again")
    assert again.returncode == 0, again.tail()
