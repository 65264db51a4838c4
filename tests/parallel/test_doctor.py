"""`hvdtrain doctor` and `hvdtrain bench allreduce` with real workers on this machine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support.process_table import variables_of
from support.processes import Spawned, run_command
from support.ranks import run_ranks

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
def test_bench_allreduce(launcher: str, framework: str, transport: str, tmp_path: Path) -> None:
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


def test_doctor_on_this_machine(tmp_path: Path) -> None:
    argv = [*HVDTRAIN, "doctor", "--json", "--framework", "torch", "--seconds", "1"]
    finished = run_command(argv, DEADLINE, cwd=tmp_path)
    report = json.loads(finished.stdout)
    assert finished.returncode == 0, report["findings"]
    assert report["status"] in ("ok", "warn")
    assert report["allreduce"]["workers"] == 2
    wanted = {"versions", "frameworks", "horovod", "mpi", "gpu", "cores", "memory", "/dev/shm", "ulimit", "disk"}
    assert wanted | {"variables", "processes", "output folder", "allreduce"} <= {f["name"] for f in report["findings"]}
    assert list(tmp_path.iterdir()) == []


def test_a_measurement_that_fails_is_a_finding(tmp_path: Path) -> None:
    argv = [*HVDTRAIN, "doctor", "--framework", "torch"]
    finished = run_command(argv, DEADLINE, env={"HOROVOD_GLOO_IFACE": "none0", "COLUMNS": "300"}, cwd=tmp_path)
    assert finished.returncode == 1, finished.tail()
    lines = [line.split() for line in finished.stdout.splitlines()]
    assert ["variables", "HOROVOD_GLOO_IFACE=none0"] in [[words[2], words[4]] for words in lines if len(words) > 4]
    assert "HINT (variables): this host has no such interface" in finished.stdout
    (line,) = (line for line in finished.stdout.splitlines() if line.split()[2:3] == ["allreduce"])
    assert line.startswith("fail"), finished.tail()


def test_nothing_outlives_a_killed_doctor(tmp_path: Path) -> None:
    argv = [*HVDTRAIN, "doctor", "--framework", "torch", "--seconds", "60"]
    with Spawned(argv, os.environ, tmp_path) as doctor:

        def ranks() -> list[int]:
            return [process for process in doctor.processes() if variables_of(process).get("WORLD_SIZE") == "2"]

        doctor.await_that(lambda: len(ranks()) == 2, "two workers that measure", 120)
        doctor.process.kill()
        doctor.require_gone(20)
