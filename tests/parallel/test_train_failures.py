"""What goes wrong on one rank ends all of them soon, and the culprit is the first to be heard.

Every task here is a user's own (workers/train_*_tasks.py), found through the module path.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WORKERS = Path(__file__).parent / "workers"
END_S = 15.0  # from the failure on one rank to the end of every process
# What ranks other than the failing one say: ours, Horovod's own log, the exception it raises.
OTHERS = re.compile(r"stopped: A collective|HorovodInternalError|horovod/common/operations\.cc")


def run_faulty(
    run_ranks: Callable[..., Any],
    folder: Path,
    launcher: str,
    *flags: str,
    framework: str = "torch",
    size: int = 2,
    **fault: Any,
) -> tuple[Any, float]:
    """The finished run, and the seconds from the fault to the end of the last process."""
    stamp = folder / "stamp"
    env = {
        "PYTHONPATH": os.pathsep.join([str(WORKERS), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "TRAIN_FAULT": json.dumps({"rank": 1, "call": 1, "stamp": str(stamp), **fault}),
    }
    module = {"torch": "train_torch_tasks", "tensorflow": "train_keras_tasks"}[framework]
    command = ["python", "-m", "hvdtrain", "--task", f"{module}:Faulty", "--output-dir", str(folder / "out"), *flags]
    finished = run_ranks(command, size, launcher, 240, env=env, cwd=folder)
    elapsed = time.monotonic() - float(stamp.read_text())
    assert not (folder / "out" / "result.json").exists()
    return finished, elapsed


def assert_heard_first(finished: Any, text: str) -> None:
    """`text` stands in stderr before anything that another rank says."""
    place = finished.stderr.find(text)
    assert place >= 0, finished.tail()
    other = OTHERS.search(finished.stderr)
    assert other is None or place < other.start(), finished.tail()


RAISING = [
    *(("mpirun", place, 1, 1) for place in ("import", "open_data", "build_model")),
    ("mpirun", "decode", 3, 1),
    ("mpirun", "measure", 4, 0),
    ("horovodrun-gloo", "import", 1, 1),
    ("horovodrun-gloo", "open_data", 1, 0),
    ("horovodrun-gloo", "build_model", 1, 1),
    ("horovodrun-gloo", "decode", 3, 1),
    ("horovodrun-gloo", "measure", 4, 1),
    ("horovodrun", "decode", 3, 1),
]


@pytest.mark.parametrize(("launcher", "place", "call", "rank"), RAISING)
def test_exception_on_one_rank(
    launcher: str, place: str, call: int, rank: int, tmp_path: Path, run_ranks: Callable[..., Any]
) -> None:
    finished, elapsed = run_faulty(run_ranks, tmp_path, launcher, place=place, kind="raise", call=call, rank=rank)
    assert finished.returncode != 0, finished.tail()
    assert elapsed < END_S, finished.tail()
    first = finished.stderr.find("Traceback (most recent call last)")
    assert f"rank {rank} on " in finished.stderr[:first], finished.tail()
    assert_heard_first(finished, f"RuntimeError: deliberate failure in {place}")
