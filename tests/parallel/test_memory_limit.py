"""A model whose optimizer's state does not fit into a memory limit on each worker trains with `--shard`.

The limit is a control group's, as Slurm, Kubernetes and Docker set it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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


@pytest.mark.timeout(600)
def test_shards_fit_where_whole_state_does_not(
    group: tuple[Path, str, str], tmp_path: Path, run_command: Callable[..., Any]
) -> None:
    folder, limit, peak = group
    (tmp_path / "wide_task.py").write_text(TASK)
    np.save(tmp_path / "wide.npy", np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32))

    def train(shard: str, out: str) -> Any:
        words = ["python", "-m", "hvdtrain", "launch", "local", "-np", "4", "--", "train", "--task", "wide_task:Wide"]
        words += [
            "--data.dir",
            str(tmp_path),
            "--shard",
            shard,
            "--output-dir",
            out,
            "--log-interval",
            "1",
            "--checkpoint-mode",
            "sync",
        ]
        inside = f"echo $$ > {folder}/cgroup.procs; exec {shlex.join(words)}"
        return run_command(
            ["sh", "-c", inside], 180, {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}, cwd=tmp_path
        )

    finished = train("gradients", "first")
    assert finished.returncode == 0, finished.tail()
    needed = int((folder / peak).read_text())
    (folder / limit).write_text(str(int(0.97 * needed)))  # a part of it was the cache of files
    whole = train("none", "whole")
    assert whole.returncode != 0, f"{needed:,} bytes were enough\n{whole.tail()}"
    assert "SIGKILL" in whole.stderr, whole.tail()
    again = train("gradients", "again")
    assert again.returncode == 0, again.tail()
