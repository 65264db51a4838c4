"""Wrong calls are refused by the name of the option, with a hint that helps."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hvdtrain.errors import UsageError
from hvdtrain.launch.hosts.host import parse_host_list
from hvdtrain.launch.hosts.host_files import parse_hostfile
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.launcher_api import job_from
from hvdtrain.launch.mpirun import require_same_mpi
from hvdtrain.launch.option_groups import _time
from hvdtrain.launch.ssh.command import SshOptions, agent_argv
from hvdtrain.launch.ssh.line import ProgramLine


@pytest.mark.parametrize(
    ("fields", "fact", "hint"),
    [
        ({"np": 0}, "-np is 0.", "from 1 up"),
        ({"backoff": float("inf")}, "--backoff is inf.", "from 0 up"),
        ({"backoff": float("nan")}, "--backoff is nan.", "from 0 up"),
        ({"min_workers": 5}, "--min-workers is 5.", "use -np 5, or --min-workers 4."),
        ({"max_workers": 2}, "--max-workers is 2.", "use -np 2, or --max-workers 4."),
        ({"min_workers": 5, "max_workers": 2}, "--min-workers is 5 and --max-workers 2.", "swap them."),
    ],
)
def test_numbers(fields: dict[str, Any], fact: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        JobSpec(**{"command": ("train",), "np": 4, **fields})
    assert fact in caught.value.fact
    assert hint in caught.value.hint


def test_hosts() -> None:
    with pytest.raises(UsageError, match="65536 workers at most"):
        parse_host_list("a:99999999999")
    for line in ("b slots = 4", "b slots= 4", "b slots =4"):
        with pytest.raises(UsageError, match="2: .* has spaces around ="):
            parse_hostfile("a slots=4\n" + line, "f")
    with pytest.raises(UsageError, match="name hosts, e.g. -H a:4,b:4"):
        job_from(argparse.Namespace(np=None, hostfile=None), ("train",))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2-00:00:00", 172_800), ("1-12", 129_600), ("0-1:30", 5400), ("12:00:00", 43_200), ("30:00", 1800), ("7", 7)],
)
def test_times(text: str, seconds: int) -> None:
    assert _time(text) == seconds


def test_another_mpi_is_refused_by_name(tmp_path: Path) -> None:
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    program.chmod(0o755)
    require_same_mpi("openmpi4", str(program))
    with pytest.raises(UsageError, match="--mpi is mpich, and .*mpirun is of openmpi4"):
        require_same_mpi("mpich", str(program))


def test_a_python_that_is_not_there_is_no_matter_of_ssh() -> None:
    with pytest.raises(UsageError) as caught:
        ProgramLine(agent_argv(SshOptions("/nosuch/python")))
    assert caught.value.hint == "check --python."


STOPPED = """
import sys, time
from hvdtrain.launch.ssh.command import SshOptions, agent_argv
from hvdtrain.launch.ssh.line import ProgramLine
from hvdtrain.launch.ssh.link import HostLink
line = ProgramLine(agent_argv(SshOptions(sys.executable, link_seconds=1.0)))
link = HostLink("b", line, 30.0, 1.0)
while link.hello is None:
    time.sleep(0.01)
print("ready", flush=True)
link._thread.join(60)
print(link.lost)
link.close()
"""


def test_a_launcher_that_stood_still_says_so() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED], cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(2.5)
    os.kill(process.pid, signal.SIGCONT)
    said, _ = process.communicate(timeout=60)
    assert "this launcher itself stood still for" in said
