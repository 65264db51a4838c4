"""Killed on three workers, continued on two: the audit still proves that every record was used once."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.processes import Spawned, environment, run_command
from support.ranks import launcher_argv, run_ranks
from support.runs import ledger_of, result_of
from support.warm.interpreters import with_interpreter

from data_sharding.formats.writers import TarWriter

EXAMPLES = Path(__file__).parents[2] / "examples"
RECORDS = 150
BATCH = 4  # 38 steps an epoch, the last one ragged
DEADLINE_S = 240


def write_cifar10(folder: Path) -> Path:
    """Binary batches: a label byte, then 3072 bytes, whose brightness tells the label."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for name, count in (("data_batch_1", 50), ("data_batch_2", 100), ("test_batch", 30)):
        labels = random.integers(0, 10, count)
        pixels = random.integers(0, 25, (count, 3072)) + labels[:, None] * 25
        (folder / f"{name}.bin").write_bytes(np.column_stack([labels, pixels]).astype(np.uint8).tobytes())
    return folder


def write_photos(folder: Path) -> Path:
    """Two tar shards to train on and one to validate on: 0001.jpg and 0001.cls, of brightness by class."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for name, count in (("train-0", 50), ("train-1", 100), ("validation-0", 30)):
        with TarWriter(folder / f"{name}.tar") as writer:
            for number in range(count):
                label = int(random.integers(0, 10))
                pixels = random.integers(0, 25, (40, 48, 3)) + label * 25
                jpeg = io.BytesIO()
                Image.fromarray(pixels.astype(np.uint8)).save(jpeg, "JPEG")
                writer.write(f"{number:04d}", {"jpg": jpeg.getvalue(), "cls": str(label).encode()})
    return folder


def kill_after(command: list[str], folder: Path, step: int) -> None:
    """Kill one of three workers with SIGKILL once the ledger tells of `step`, which is seen late; all end then."""
    argv = with_interpreter([*launcher_argv("horovodrun-gloo", 3), *command])
    with Spawned(argv, environment({"PYTHONPATH": str(EXAMPLES)}), folder) as job:

        def committed() -> int:
            return max((line.get("end", 0) for line in ledger_of(folder / "out")), default=0)

        job.await_that(lambda: committed() >= step, f"step {step} in the ledger", DEADLINE_S)
        os.kill(worker_of(job.process.pid), signal.SIGKILL)
        assert job.wait(DEADLINE_S).returncode != 0


def worker_of(launcher: int) -> int:
    """A process below the launcher that runs hvdtrain itself, or stands for one."""
    import psutil

    for process in psutil.Process(launcher).children(recursive=True):
        words = process.cmdline()
        if words[1:3] == ["-m", "hvdtrain"] or words[1:2] == ["-I"]:
            return int(process.pid)
    raise AssertionError("the launcher has no worker")


@pytest.mark.parametrize(
    ("task", "write"), [("cifar10_torch:Cifar10", write_cifar10), ("photos_torch:Photos", write_photos)]
)
def test_killed_on_three_workers_and_resumed_on_two(tmp_path: Path, task: str, write: Callable[[Path], Path]) -> None:
    out, data = tmp_path / "out", write(tmp_path / "data")
    sizes = ["--global-batch-size", str(BATCH), "--epochs", "3", "--checkpoint-interval", "2", "--warmup-epochs", "0"]
    argv = ["--task", task, "--data.dir", str(data), "--output-dir", str(out), *sizes]
    argv += ["--progress", "none", "--report", "never"]
    kill_after(["python", "-m", "hvdtrain", *argv], tmp_path, step=4)
    assert not (out / "result.json").exists()
    finished = run_ranks(
        ["python", "-m", "hvdtrain", *argv], 2, "mpirun", DEADLINE_S, {"PYTHONPATH": str(EXAMPLES)}, tmp_path
    )
    assert finished.returncode == 0, finished.tail()
    result = result_of(out)
    assert (result["samples_seen"], result["world_size"]) == (3 * RECORDS, 2)
    verified = run_command(["python", "-m", "hvdtrain", "shard", "verify", str(out)], DEADLINE_S)
    assert verified.returncode == 0, verified.tail()
    assert f"exact: each of 3 finished epochs used every one of {RECORDS} records once" in verified.stdout
    starts = ledger_of(out, event="started")
    assert [line["world_size"] for line in starts] == [3, 2]
    in_the_middle = starts[1]["step"] % starts[1]["steps_per_epoch"] != 0  # of an epoch; seldom, it is at its end
    assert ("3 → 2" in verified.stdout) == in_the_middle
