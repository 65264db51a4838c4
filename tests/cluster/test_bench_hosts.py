"""Measurements across hosts: links that `hvdtrain bench` emulates, workers that Slurm starts, a plan's two links."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from emulated_hosts import EmulatedHosts
from emulated_slurm import EmulatedSlurm
from requirements import obstacle
from support.processes import Finished, Spawned
from support.runs import read_json
from training import ENVIRONMENT, START_SECONDS

WAYS = ("ring of 3", "2 workers, 1 server", "1 worker, 2 servers")


def bench(folder: Path, *words: str) -> Finished:
    """On this machine itself."""
    argv = [sys.executable, "-m", "hvdtrain", "bench", "parameter-server", *words, "--out", str(folder)]
    return Spawned(argv, {**os.environ, **ENVIRONMENT}, folder.parent).wait(2 * START_SECONDS)


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True, timeout=30).stdout


@pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))
def test_averages_are_measured_on_links_of_several_rates(tmp_path: Path) -> None:
    rates, sizes = ["--emulate", "100,1000", "--machines", "3"], ["--sizes", "16KiB,256KiB", "--repeats", "2"]
    done = bench(tmp_path / "out", "--servers", "1,2", *rates, *sizes)
    assert done.returncode == 0, done.tail()
    found = read_json(tmp_path / "out" / "parameter-server.json")["links"]
    assert list(found) == ["100 Mbit/s", "1000 Mbit/s"]
    for averages in found.values():
        assert [(one["servers"], one["nbytes"]) for one in averages] == [
            (servers, nbytes) for servers in (0, 1, 2) for nbytes in (16384, 262144)
        ]
    # Half a megabyte goes into the server's link and out of it: that takes 84 ms at 100 Mbit/s, on any machine.
    one_server = next(one for one in found["100 Mbit/s"] if one["servers"] == 1 and one["nbytes"] == 262144)
    assert min(one_server["seconds"]) > 2 * (2 * 262144 * 8 / 100e6 - 0.01)
    assert all(way in (tmp_path / "out" / "parameter-server.svg").read_text() for way in WAYS)
    assert "hvdlink" not in namespaces()


@pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))
def test_machines_without_a_worker_are_refused(tmp_path: Path) -> None:
    done = bench(tmp_path / "out", "--servers", "3", "--emulate", "100", "--machines", "3")
    assert done.returncode == 2, done.tail()
    assert "There are 3 machines, and --servers is 3." in done.stderr, done.tail()
    assert "hvdlink" not in namespaces()


def test_scaling_is_measured_on_workers_that_slurm_starts(slurm: EmulatedSlurm, tmp_path: Path) -> None:
    own = ["--sizes", "1,2", "--starter", "srun -n {np}", "--repeats", "1", "--iters", "1", "--out", str(tmp_path)]
    task = ["--framework", "torch", "--task", "digits", "--global-batch-size", "32"]
    done = slurm.run(["hvdtrain", "bench", "scaling", *own, *task], 2 * START_SECONDS, ENVIRONMENT, tmp_path)
    assert done.returncode == 0, done.tail()
    points = read_json(tmp_path / "scaling.json")["points"]
    assert [point["workers"] for point in points] == [1, 2, 1, 2]
    assert all(point["predicted"] > 0 for point in points if point["workers"] == 2)


def test_a_plan_measures_links_within_hosts_and_between_them(hosts: EmulatedHosts, tmp_path: Path) -> None:
    for host in hosts.names:
        hosts.shape(host, "100mbit")
    options = ["--framework", "torch", "--workers", "4", "--seconds", "4", "--out", str(tmp_path / "plan")]
    argv = [sys.executable, "-m", "hvdtrain", "launch", "ssh", "-H", "host1:2,host2:2", "--", "plan", *options]
    for _ in range(3):  # what other tests compute meanwhile slows memory down, and makes no link faster
        done = hosts.run("host1", argv, 2 * START_SECONDS, ENVIRONMENT, tmp_path)
        assert done.returncode == 0, done.tail()
        assert "between hosts " in done.stdout, done.tail()
        cluster = read_json(tmp_path / "plan" / "plan.json")["cluster"]
        assert cluster["outer"]["bandwidth"] < 1.35 * 100e6 / 8
        if cluster["inner"]["bandwidth"] > 3 * cluster["outer"]["bandwidth"]:
            break
    assert cluster["outer"]["bandwidth"] == pytest.approx(100e6 / 8, rel=0.35)
    assert cluster["inner"]["bandwidth"] > 3 * cluster["outer"]["bandwidth"], "memory, not a link of 100 Mbit/s"
    assert cluster["workers_per_host"] == 2
