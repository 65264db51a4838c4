"""Ranks that wait for others at the start: for how long, and how they end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hvdtrain.comm.peer_failure import start_timeout
from hvdtrain.errors import UsageError

WAITS = """
import os, sys, time
from hvdtrain.comm.peer_failure import bounded_start
from hvdtrain.topology import detect_topology

with bounded_start(detect_topology(os.environ), os.environ):
    print(os.environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS"), flush=True)
    time.sleep(float(sys.argv[1]))
print("connected")
"""
RANK = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
GLOO_RANK = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_CONTROLLER": "gloo"}


def wait(seconds: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A process that hangs for `seconds` where it should be connected to others."""
    argv = [sys.executable, "-c", WAITS, seconds]
    return subprocess.run(argv, env=variables, capture_output=True, text=True, timeout=60, check=False)


def test_a_rank_that_waits_too_long_ends_and_says_so() -> None:
    done = wait("50", {**RANK, "HVDTRAIN_START_TIMEOUT": "1"})
    assert done.returncode == 1
    assert "rank 1 on " in done.stderr
    assert "Not all of the 2 ranks were connected within 1 s" in done.stderr
    assert "HINT: " in done.stderr


def test_a_rank_that_is_connected_in_time_goes_on() -> None:
    done = wait("0", RANK)
    assert (done.returncode, done.stdout.split()[-1]) == (0, "connected"), done.stderr


def test_gloo_waits_as_long_as_asked_unless_it_is_told_otherwise() -> None:
    assert wait("0", GLOO_RANK).stdout.split()[0] == "None"
    assert wait("0", {**GLOO_RANK, "HVDTRAIN_START_TIMEOUT": "200"}).stdout.split()[0] == "205"
    own = {**GLOO_RANK, "HVDTRAIN_START_TIMEOUT": "200", "HOROVOD_GLOO_TIMEOUT_SECONDS": "2"}
    assert wait("0", own).stdout.split()[0] == "2"
    assert "within 1 s" in wait("50", own).stderr  # before Gloo itself would abort the process


@pytest.mark.parametrize("text", ["soon", "0", "-1", "1e3", "99999999"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="HVDTRAIN_START_TIMEOUT"):
        start_timeout({"HVDTRAIN_START_TIMEOUT": text})
