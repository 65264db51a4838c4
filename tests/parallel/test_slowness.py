"""A rank that is slow is named with what makes it slow; a trace shows all ranks and Horovod on one clock."""

from __future__ import annotations

import gzip
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.processes import python_path
from support.ranks import run_ranks
from support.runs import lines_of, read_json, result_of

WORKERS = Path(__file__).parent / "workers"
_CLOCK_US = 10_000  # by which aligned clocks may differ on a machine that has more to do; a step takes 300,000
_PERIOD_US, _SHARE = 100_000, 0.1  # of a processor; a quarter is what any rank gets beside other tests
_DISK_BYTES = 2**20  # a second; a batch needs an eighth of that


def command(task: str, *options: str) -> list[str]:
    train = ["python", "-m", "hvdtrain", "train", "--task", f"slow_ranks:{task}", "--output-dir", "out"]
    return [*train, "--log-interval", "2", "--progress", "none", *options]


def environment(**more: str) -> dict[str, str]:
    return {**python_path(WORKERS), **more}


def test_slow_input_is_named_and_a_trace_shows_it(tmp_path: Path) -> None:
    argv = command("SlowInput", "--max-steps", "45", "--trace", "4:9", "--report", "always")
    finished = run_ranks(argv, 2, "horovodrun-gloo", 180, env=environment(), cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    _check_result(tmp_path / "out", "slow input", finished)
    seconds = result_of(tmp_path / "out")["seconds"]["ranks"]
    assert seconds[1]["data"] > 2 * seconds[0]["data"]
    assert seconds[0]["allreduce"] > 2 * seconds[1]["allreduce"]
    assert all(rank["forward"] + rank["backward"] + rank["optimizer"] <= rank["compute"] for rank in seconds)
    _check_trace(tmp_path / "out" / "traces" / "steps_4_9.json.gz")


def _check_result(folder: Path, cause: str, finished: Any) -> None:
    result = result_of(folder)
    named = [(found["rank"], found["cause"]) for found in result["stragglers"]]
    assert named == [(1, cause)], (result["stragglers"], finished.tail())
    (found,) = result["stragglers"]
    assert found["host"] == read_json(folder / "env.json")["hosts"][1]
    assert found["slower_by"] >= 0.5
    assert found["share_of_time_others_waited"] > 0.2
    assert 1 <= found["since_step"] < found["until_step"] <= result["steps"]
    events = lines_of(folder, event="straggler")
    assert [(event["rank"], event["cause"]) for event in events] == named
    assert finished.stderr.count(f"Rank 1 on {found['host']} is slow by ") == 1, finished.tail()
    assert f"{cause}, slower by " in finished.stdout, finished.tail()
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert re.search(rf"[Rr]ank 1 on {found['host']} is slow by \d+%[^<]*; the cause is: {cause} ", page), (
        finished.tail()
    )
    assert set(result["step_seconds"]) == {"0", "1"}
    for rank in result["step_seconds"].values():
        assert set(rank) >= {"step", "data", "forward", "backward", "allreduce", "optimizer", "allreduce_hidden"}
        assert rank["step"]["p50"] <= rank["step"]["p99"] <= rank["step"]["max"]


def _check_trace(file: Path) -> None:
    with gzip.open(file) as stream:
        events = json.load(stream)["traceEvents"]
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert [name.partition(" on ")[0] for name in processes.values()] == [
        "rank 0",
        "rank 1",
        "Horovod, as rank 0 sees it",
    ]
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] == "X":
            spans.setdefault((event["pid"], lanes[event["pid"], event["tid"]]), []).append(event)
    for rank in range(2):
        assert [span["name"] for span in spans[rank, "steps"]] == [f"update {number}" for number in range(4, 10)]
        assert any("mm" in span["name"] for (pid, _), own in spans.items() if pid == rank for span in own)
    waits = [[s for s in spans[rank, "parts of steps"] if s["name"] == "allreduce"] for rank in range(2)]
    assert len(waits[0]) == len(waits[1]) == 6
    for one, other in zip(*waits, strict=True):  # no rank leaves a sum before both have come to it
        assert one["ts"] + one["dur"] >= other["ts"] - _CLOCK_US
        assert other["ts"] + other["dur"] >= one["ts"] - _CLOCK_US
    sums = [span for span in spans[2, "allreduce.hvdtrain.gradients.0"] if span["name"] == "ALLREDUCE"]
    begin, end = (spans[0, "steps"][0]["ts"], spans[0, "steps"][-1]["ts"] + spans[0, "steps"][-1]["dur"])
    assert len([span for span in sums if begin - _CLOCK_US <= span["ts"] <= end + _CLOCK_US]) >= 6
    assert max(span["ts"] for span in sums) <= end + _CLOCK_US


@contextmanager
def limited_group(controller: str, first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[Path]:
    """A control group with limits: `first` in version 1, where each controller has a folder, else `second`."""
    root = Path("/sys/fs/cgroup")
    parent, limits = (root / controller, first) if (root / controller).is_dir() else (root, second)
    group = parent / f"hvdtrain-test-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        for file, limit in limits.items():
            (group / file).write_text(limit)
    except OSError as error:
        group.rmdir()
        pytest.skip(f"no control group can be limited here: {error}")
    try:
        yield group
    finally:
        for process in (group / "cgroup.procs").read_text().split():
            (parent / "cgroup.procs").write_text(process)
        group.rmdir()


def disk_of(path: Path) -> str:
    """The "major:minor" of the disk, not of its partition, that holds a file."""
    device = f"{os.major(path.stat().st_dev)}:{os.minor(path.stat().st_dev)}"
    folder = Path("/sys/dev/block", device)
    if not folder.exists():
        pytest.skip(f"{path} is on no disk")
    return (folder.resolve().parent / "dev").read_text().strip() if (folder / "partition").exists() else device


def test_a_rank_with_a_tenth_of_a_processor_is_named(tmp_path: Path) -> None:
    quota = f"{int(_SHARE * _PERIOD_US)}"
    first = {"cpu.cfs_period_us": f"{_PERIOD_US}", "cpu.cfs_quota_us": quota}
    with limited_group("cpu", first, {"cpu.max": f"{quota} {_PERIOD_US}"}) as group:
        argv = command("Throttled", "--epochs", "10000", "--max-time", "120", "--report", "always")
        finished = run_ranks(argv, 2, "horovodrun-gloo", 180, env=environment(LIMITED_GROUP=str(group)), cwd=tmp_path)
    assert (tmp_path / "out" / "result.json").exists(), finished.tail()
    _check_result(tmp_path / "out", "cpu throttled", finished)
    (found,) = result_of(tmp_path / "out")["stragglers"]
    assert found["facts"]["throttled"] > 0.3


def test_a_rank_with_a_slow_disk_is_named(tmp_path: Path) -> None:
    """Linux must count what waits for disks (PSI), and the limit must hold for reads that find nothing in memory."""
    if not Path("/proc/pressure/io").exists():
        pytest.skip("this kernel does not count what waits for disks")
    cold = tmp_path / "cold"
    with cold.open("wb") as file:
        file.write(os.urandom(2**20))
        os.fsync(file.fileno())  # what is not on the disk yet stays in memory
    limit = f"{disk_of(cold)} {_DISK_BYTES}"
    first = {"blkio.throttle.read_bps_device": limit}
    with limited_group("blkio", first, {"io.max": limit.replace(" ", " rbps=")}) as group:
        argv = command("SlowDisk", "--epochs", "10000", "--max-steps", "60", "--report", "always")
        env = environment(LIMITED_GROUP=str(group), COLD_FILE=str(cold))
        finished = run_ranks(argv, 2, "horovodrun-gloo", 180, env=env, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    _check_result(tmp_path / "out", "slow disk", finished)
