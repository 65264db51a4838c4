"""A checkpoint that cannot be written ends all ranks with one message, and earlier checkpoints stay good."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes import python_path, run_command
from support.ranks import run_ranks
from support.runs import lines_of

WORKERS = Path(__file__).parent / "workers"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: a full disk. Mounting one needs root.")
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, check=False, capture_output=True, text=True, timeout=30)
    if mounted.returncode != 0:
        pytest.skip(f"NOT TESTED: a full disk. This root may not mount: {mounted.stderr.strip()}")
    yield folder
    deadline = time.monotonic() + 30
    while subprocess.run(["umount", str(folder)], check=False, capture_output=True, timeout=30).returncode:
        # A process that is no longer listed may still be closing its files.
        assert time.monotonic() < deadline, f"{folder} stays busy"
        time.sleep(0.1)


def failed_together(finished: Any) -> None:
    assert finished.returncode == 1, finished.tail()
    ours = finished.stderr.partition("Traceback (most recent call last)")[0]  # horovodrun's own, at the end
    assert ours.count("could not be written: ") == 1, finished.tail()
    assert ours.count("HINT: free space or choose another --output-dir") == 1, finished.tail()
    assert "A collective operation was aborted" not in finished.stderr, finished.tail()


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun-gloo"])
def test_disk_that_fills_up(launcher: str, small_disk: Path, tmp_path: Path) -> None:
    """A checkpoint of this narrow network takes 425 kB, so that two fit."""
    task = ["--task-args.width", "8", "--checkpoint-interval", "5"]
    out = small_disk / "out"
    finished = run_ranks(["python", "-m", "hvdtrain", *task, "--output-dir", str(out)], 3, launcher, 180, cwd=tmp_path)
    failed_together(finished)
    assert "The checkpoint of step 15 could not be written: " in finished.stderr, finished.tail()
    assert re.search(r"No space left on device: it needs 0\.\d MB, and 0\.\d MB are free", finished.stderr)  # not tried
    checkpoints = out / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["latest", "step_00000005", "step_00000010"]
    assert (checkpoints / "latest").read_text().strip() == "step_00000010"
    assert not (out / "result.json").exists()
    elsewhere = tmp_path / "elsewhere"
    resume = ["--resume", str(out), "--output-dir", str(elsewhere), "--max-steps", "20"]
    resumed = run_command(["python", "-m", "hvdtrain", *task, *resume], 180, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.tail()
    first = lines_of(elsewhere)[0]
    assert (first["event"], first["step"]) == ("resumed", 10)


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun-gloo"])
def test_disk_without_room_for_one_more_line(launcher: str, small_disk: Path) -> None:
    """Something else fills the disk in the second step, so that neither logs nor metrics can be written."""
    out, stamp = small_disk / "out", small_disk / "stamp"
    fault = {"place": "measure", "kind": "fill", "rank": 0, "call": 2, "stamp": str(stamp)}
    env = {
        **python_path(WORKERS),
        "TRAIN_FAULT": json.dumps(fault),
        "FILL_FOLDER": str(small_disk),
    }
    task = ["--task", "train_torch_tasks:Faulty", "--log-interval", "1"]
    finished = run_ranks(["python", "-m", "hvdtrain", *task, "--output-dir", str(out)], 2, launcher, 180, env=env)
    elapsed = time.monotonic() - float(stamp.read_text())
    assert finished.returncode == 1, finished.tail()
    assert elapsed < 15, finished.tail()
    ours = finished.stderr.partition("Traceback (most recent call last)")[0]  # horovodrun's own, at the end
    assert ours.count("A line of metrics.jsonl could not be written: ") == 1, finished.tail()
    assert ours.count("HINT: free space or choose another --output-dir") == 1, finished.tail()
    assert ours.count("rank_0.log cannot be written any more: ") <= 1, finished.tail()
    lines = (out / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["event"] == "started"


def test_something_in_the_way_of_the_checkpoints(tmp_path: Path) -> None:
    """Root may write everywhere, but not below a file."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "checkpoints").write_text("a file")
    finished = run_ranks(["python", "-m", "hvdtrain", "--output-dir", str(out)], 2, "mpirun", 180, cwd=tmp_path)
    failed_together(finished)
    assert "Not a directory" in finished.stderr, finished.tail()
    assert (out / "checkpoints").read_text() == "a file"


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun-gloo"])
def test_run_folder_that_cannot_be_made(launcher: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "out"
    finished = run_ranks(["python", "-m", "hvdtrain", "--output-dir", str(out)], 2, launcher, 180, cwd=tmp_path)
    assert finished.returncode == (1 if launcher == "horovodrun-gloo" else 2), finished.tail()
    assert finished.stderr.count(f"The run folder {out} cannot be written: Not a directory.") == 1, finished.tail()
    assert "training from step" not in finished.stderr, finished.tail()
