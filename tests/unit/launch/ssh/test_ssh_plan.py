"""What `hvdtrain launch ssh` runs, word for word, and for how many workers.

To accept a change of the text: HVDTRAIN_UPDATE_GOLDEN=1 python -m pytest tests/unit/launch/ssh/test_ssh_plan.py
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hvdtrain.cli.main import main
from hvdtrain.errors import UsageError
from hvdtrain.launch.hosts.host import Host
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.ssh.command import SshOptions, preview, ssh_argv
from hvdtrain.launch.ssh.host_addresses import address_for_hosts, interface_towards, is_this_machine
from hvdtrain.launch.ssh.launcher import require_runnable
from hvdtrain.launch.ssh.room import workers_on
from hvdtrain.launch.worker_environment import host_variables

GOLDEN = Path(__file__).parent / "golden"
COMMAND = ("train", "--data.dir", "it's a folder; $HOME", "--max-steps", "3")
HOSTS = (Host("node1", 4), Host("node2", 2))
PLAIN = JobSpec(command=COMMAND, np=6, hosts=HOSTS, python="/opt/venv/bin/python", max_restarts=2)
FULL = replace(
    PLAIN,
    hosts=(Host("node1", 2, (4, 6)), Host("node2", 2, (0, 1))),
    np=3,
    env=("API_KEY",),
    nics=("ib0", "eth0"),
    cores_per_host=32,
    ssh_port=2222,
    working_dir="/shared/my digits",
    min_workers=2,
    max_workers=4,
)
UNCHECKED = SshOptions("/opt/my venv/bin/python", 2222, 60.0, checks_host_keys=False)
ENVIRON = {"PATH": "/bin", "API_KEY": "canary", "HOROVOD_RANK": "7", "HOROVOD_CYCLE_TIME": "5", "HOME": "/root"}
SHOWN = {"ssh_plain": (PLAIN, SshOptions(PLAIN.python)), "ssh_full": (FULL, UNCHECKED)}


@pytest.mark.parametrize("name", SHOWN)
def test_the_text_is_the_one_on_record(name: str) -> None:
    job, options = SHOWN[name]
    text = preview(job, options, {"node1"}.__contains__, ENVIRON, "/home/me")
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("HVDTRAIN_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
    assert "canary" not in text


def test_the_command_line_leads_to_that_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("HOROVOD_", "HVDTRAIN_", "OMP_", "TF_"))]:
        monkeypatch.delenv(name)
    flags = ["-H", "localhost:1,node2:2", "--python", "/opt/python", "--max-restarts", "2", "--ssh-port", "2222"]
    more = ["--link-timeout", "30", "--min-workers", "2", "--max-workers", "3", "--dry-run", "--", *COMMAND]
    assert main(["launch", "ssh", *flags, *more]) == 0
    hosts = (Host("localhost", 1), Host("node2", 2))
    timeouts = {"min_workers": 2, "max_workers": 3, "max_restarts": 2}
    job = JobSpec(command=COMMAND, np=3, hosts=hosts, python="/opt/python", ssh_port=2222, **timeouts)
    options = SshOptions("/opt/python", 2222, 30.0)
    assert capsys.readouterr().out == preview(job, options, {"localhost"}.__contains__, os.environ, os.getcwd())


@pytest.mark.parametrize("launcher", ["horovodrun", "mpirun"])
def test_launchers_that_cannot_restart_name_this_one(launcher: str, capsys: pytest.CaptureFixture[str]) -> None:
    mpi = ["--mpi", "openmpi5"] if launcher == "mpirun" else []
    assert main(["launch", launcher, "-H", "a:1,b:1", *mpi, "--max-restarts", "3", "--dry-run"]) == 2
    assert "HINT: leave --max-restarts out, or use `hvdtrain launch ssh`" in capsys.readouterr().err


def test_the_interpreters_path_survives_the_shell_of_the_host(tmp_path: Path) -> None:
    python = tmp_path / "it's $HOME"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    *_, separator, host, line = ssh_argv(SshOptions(str(python)), "node1")
    assert (separator, host) == ("--", "node1")
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["-P", "-m", "hvdtrain.launch.ssh.agent", "15"]


@pytest.mark.parametrize(
    ("least", "most", "slots", "first", "later"),
    [
        (None, None, 6, 4, 4),
        (None, None, 3, 0, 0),
        (2, None, 3, 3, 3),
        (2, None, 1, 0, 0),
        (2, 5, 6, 4, 5),
        (2, 8, 6, 4, 6),
    ],
)
def test_how_many_workers_fit(least: int | None, most: int | None, slots: int, first: int, later: int) -> None:
    job = JobSpec(command=COMMAND, np=4, hosts=(Host("a", 8),), min_workers=least, max_workers=most, max_restarts=1)
    assert workers_on(job, [Host("a", slots)], restarts=0) == first
    assert workers_on(job, [Host("a", slots)], restarts=1) == later


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hosts": ()}, "names no hosts"),
        ({"time_limit": 5}, "--time-limit"),
        ({"env": ("UNSET",)}, "UNSET is to be passed on. It is not set"),
        ({"min_workers": 2, "max_restarts": 0}, "no --max-restarts"),
        ({"min_workers": 2, "command": ("train", "--batch-size", "8")}, "HINT: .*--global-batch-size 48"),
        (
            {"host_discovery_script": "/bin/true", "command": ("train", "--parallel.stages", "2")},
            "--host-discovery-script is given with --parallel.stages 2.",
        ),
    ],
)
def test_jobs_that_this_launcher_refuses(change: dict[str, Any], message: str) -> None:
    require_runnable(PLAIN, ENVIRON)
    with pytest.raises(UsageError, match=message):
        require_runnable(replace(PLAIN, **change), ENVIRON)


def test_gpus_of_the_first_host_of_a_batch_job_are_not_taken_for_those_of_others() -> None:
    """PBS and LSF give each host GPUs by numbers of its own."""
    for devices in ("0,1,2,3", "-1", ""):
        require_runnable(PLAIN, {**ENVIRON, "PBS_JOBID": "1.head", "CUDA_VISIBLE_DEVICES": devices})
    some = {**ENVIRON, "CUDA_VISIBLE_DEVICES": "2,3"}
    require_runnable(PLAIN, some)  # what a user sets
    for scheduler in ("PBS_JOBID", "LSB_JOBID"):
        with pytest.raises(UsageError, match=rf"CUDA_VISIBLE_DEVICES is '2,3' in this job \({scheduler}\), and node2"):
            require_runnable(PLAIN, {**some, scheduler: "1"})
    require_runnable(replace(PLAIN, env=("CUDA_VISIBLE_DEVICES",)), {**some, "PBS_JOBID": "1"})
    require_runnable(replace(PLAIN, np=4), {**some, "PBS_JOBID": "1"})  # one host
    with pytest.raises(UsageError, match="find each other over IPv4"):
        require_runnable(replace(PLAIN, hosts=(Host("fd77::1", 8),)), ENVIRON)


def test_workers_get_what_they_need_and_what_was_asked_for() -> None:
    found = host_variables(FULL, FULL.hosts[0], ENVIRON)
    assert found == {
        "PATH": "/bin",
        "API_KEY": "canary",
        "HOROVOD_CYCLE_TIME": "5",
        "HVDTRAIN_ASKED_SIZE": "3",
        "HVDTRAIN_MOST_SIZE": "4",
        "OMP_NUM_THREADS": "16",
        "MKL_NUM_THREADS": "16",
        "OPENBLAS_NUM_THREADS": "16",
        "NCCL_SOCKET_IFNAME": "=ib0,eth0",
        "CUDA_VISIBLE_DEVICES": "4,6",
    }
    assert "CUDA_VISIBLE_DEVICES" not in host_variables(FULL, FULL.hosts[1], ENVIRON)


def test_workers_get_what_the_user_sets_of_gloo_but_no_other_jobs_network() -> None:
    limits = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "90", "HOROVOD_GLOO_SHARED_MEMORY": "0"}
    network = {"HOROVOD_GLOO_IFACE": "eth1", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1"}
    found = host_variables(PLAIN, PLAIN.hosts[0], {**limits, **network})
    assert {name: text for name, text in found.items() if "GLOO" in name} == limits


def test_where_workers_meet() -> None:
    assert address_for_hosts({"here": ""}, ()) == "127.0.0.1"
    assert address_for_hosts({"here": "", "b": "127.0.0.1"}, ()) == "127.0.0.1"
    assert address_for_hosts({"127.0.0.9": "192.0.2.7"}, ("lo",)) == "127.0.0.1"
    assert address_for_hosts({"127.0.0.9": "192.0.2.7"}, ()).startswith("127.")  # the route to the host decides
    with pytest.raises(UsageError, match="no-such-host.invalid was called from 192.0.2.7"):
        address_for_hosts({"no-such-host.invalid": "192.0.2.7"}, ())
    assert interface_towards("127.0.0.1") == "lo"
    assert interface_towards("192.0.2.1", ("none0", "lo")) == "lo"
    with pytest.raises(UsageError, match="None of the network interfaces none0"):
        interface_towards("127.0.0.1", ("none0",))
    assert is_this_machine("localhost")
    assert not is_this_machine("192.0.2.1")
