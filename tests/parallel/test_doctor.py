"""`hvdtrain doctor` and `hvdtrain bench allreduce` with real workers on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DEADLINE = 240
HVDTRAIN = [sys.executable, "-m", "hvdtrain"]


def report_in(text: str) -> Any:
    """The JSON object in an output in which launchers may have put their own marks and lines."""
    line = next(line for line in text.splitlines() if '"workers"' in line)
    return json.loads(line[line.index("{") :])


@pytest.mark.parametrize(
    ("launcher", "framework", "transport"),
    [("horovodrun-gloo", "torch", "gloo"), ("mpirun", "tensorflow", "mpi")],
)
def test_bench_allreduce(
    launcher: str, framework: str, transport: str, run_ranks: Callable[..., Any], tmp_path: Path
) -> None:
    argv = ["bench", "allreduce", "--json", "--framework", framework, "--sizes", "4B,64KiB,1MiB", "--seconds", "1"]
    finished = run_ranks(["python", "-m", "hvdtrain", *argv], 2, launcher, DEADLINE, cwd=tmp_path)
    assert finished.returncode == 0, finished.tail()
    report = report_in(finished.stdout)
    assert (report["workers"], report["framework"], report["transport"]) == (2, framework, transport)
    sizes = [point["bytes"] for point in report["sizes"]]
    assert sizes in ([4, 65536], [4, 65536, 2**20])  # the largest is left out where there was no time for it
    for point in report["sizes"]:
        assert point["bus_bandwidth"] == pytest.approx(point["bytes"] / point["seconds"])  # two workers: factor 1
    assert list(tmp_path.iterdir()) == []


def test_doctor_on_this_machine(run_command: Callable[..., Any], tmp_path: Path) -> None:
    argv = [*HVDTRAIN, "doctor", "--json", "--framework", "torch", "--seconds", "1"]
    finished = run_command(argv, DEADLINE, cwd=tmp_path)
    report = json.loads(finished.stdout)
    assert finished.returncode == 0, report["findings"]
    assert report["status"] in ("ok", "warn")
    assert report["allreduce"]["workers"] == 2
    wanted = {"versions", "frameworks", "horovod", "mpi", "gpu", "cores", "memory", "/dev/shm", "ulimit", "disk"}
    assert wanted | {"variables", "processes", "output folder", "allreduce"} <= {f["name"] for f in report["findings"]}
    assert list(tmp_path.iterdir()) == []


def test_a_measurement_that_fails_is_a_finding(run_command: Callable[..., Any], tmp_path: Path) -> None:
    argv = [*HVDTRAIN, "doctor", "--framework", "torch"]
    finished = run_command(argv, DEADLINE, env={"HOROVOD_GLOO_IFACE": "none0", "COLUMNS": "300"}, cwd=tmp_path)
    assert finished.returncode == 1, finished.tail()
    lines = [line.split() for line in finished.stdout.splitlines()]
    assert ["variables", "HOROVOD_GLOO_IFACE=none0"] in [[words[2], words[4]] for words in lines if len(words) > 4]
    assert "HINT (variables): this host has no such interface" in finished.stdout
    (line,) = (line for line in finished.stdout.splitlines() if line.split()[2:3] == ["allreduce"])
    assert line.startswith("fail"), finished.tail()


def test_nothing_outlives_a_killed_doctor(tmp_path: Path) -> None:
    mark = f"HVDTRAIN_TEST_DOCTOR={uuid.uuid4().hex}"
    name, _, value = mark.partition("=")
    argv = [*HVDTRAIN, "doctor", "--framework", "torch", "--seconds", "60"]
    with (tmp_path / "out").open("wb") as out:
        doctor = subprocess.Popen(argv, stdout=out, stderr=out, cwd=tmp_path, env={**os.environ, name: value})
    try:
        wait_for(lambda: len(ranks(mark)) == 2, 120.0, "two workers measure")
        doctor.send_signal(signal.SIGKILL)
        wait_for(lambda: not processes(mark), 20.0, "all have ended")
    finally:
        doctor.kill()
        doctor.wait(timeout=10)
        for pid in processes(mark):
            os.kill(pid, signal.SIGKILL)


def processes(mark: str) -> dict[int, bytes]:
    """Process id → variables, of all that carry the mark."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            variables = (folder / "environ").read_bytes() if folder.name.isdigit() else b""
        except OSError:
            continue  # ended meanwhile
        if mark.encode() in variables:
            found[int(folder.name)] = variables
    return found


def ranks(mark: str) -> list[int]:
    return [pid for pid, variables in processes(mark).items() if b"\0WORLD_SIZE=2\0" in variables]


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)
