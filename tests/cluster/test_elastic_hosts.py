"""Hosts that come and go while others train: what joins proves itself, what cannot join ends nothing."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from emulated_hosts import EmulatedHosts
from launched_training import DEADLINE_S, await_further_lines, await_words, end_cut, one, require_exactly_once
from support.process_table import kill
from support.processes import Spawned, wait_until
from support.runs import result_of

LINK_S = 4.0
LAUNCH = [sys.executable, "-m", "hvdtrain", "launch", "ssh"]
TRAIN = ["--", "train", "--output-dir", "out", "--checkpoint-interval", "10", "--epochs", "5000"]

pytestmark = pytest.mark.timeout(600)


def stop(job: Spawned, hosts: EmulatedHosts, folder: Path, resumed: int) -> None:
    """End it in good order."""
    kill([one(hosts, "host1", "-m hvdtrain launch")], signal.SIGTERM)
    done = job.wait(DEADLINE_S)
    assert done.returncode == 75, done.tail()
    require_exactly_once(hosts, folder, resumed)


def test_hosts_come_and_go_as_the_script_says_and_no_step_is_lost(three: EmulatedHosts, tmp_path: Path) -> None:
    names, script = tmp_path / "names", tmp_path / "discover"
    script.write_text(f"#!/bin/sh\ncat {names}\n")
    script.chmod(0o755)
    names.write_text("host1:1\nhost2:1\n")
    known = three.ssh_folder("host1") / "known_hosts"
    all_keys = known.read_text()
    known.write_text("".join(line for line in all_keys.splitlines(True) if not line.startswith("host3")))
    flags = ["-np", "2", "--min-workers", "1", "--max-workers", "3", "--max-restarts", "1"]
    job = three.spawn("host1", [*LAUNCH, *flags, "--host-discovery-script", str(script), *TRAIN], cwd=tmp_path)
    await_further_lines(job, tmp_path)
    names.write_text("host1:1\nhost2:1\nhost3:1\n")
    await_words(job, "hvdtrain launch: host3 is not used now: ", "Host key verification failed", "It is tried again.")
    assert not three.pids("host3")
    known.write_text(all_keys)
    await_words(job, "hvdtrain launch: 3 workers train on, of which 1 joined.")
    await_further_lines(job, tmp_path)
    first = one(three, "host1", "-m hvdtrain train")
    names.write_text("host1:1\nhost3:1\n")
    await_words(job, "hvdtrain launch: 2 workers train on.")
    wait_until("host2 is left", lambda: not three.pids("host2"), DEADLINE_S, lambda: job.output)
    await_further_lines(job, tmp_path)
    assert (one(three, "host1", "-m hvdtrain train"), bool(three.pids("host3"))) == (first, True)
    names.write_text("-oProxyCommand=reboot\n")
    await_words(job, "is not a host name", "The hosts that it named before stay in use.")
    stop(job, three, tmp_path, resumed=2)
    goodput = result_of(tmp_path / "out")["goodput"]
    assert (goodput["restarts"], goodput["lost_steps"]) == ([], 0)


def test_a_host_that_cannot_reach_the_others_is_named_and_ends_nothing(hosts: EmulatedHosts, tmp_path: Path) -> None:
    names, script = tmp_path / "names", tmp_path / "discover"
    script.write_text(f"#!/bin/sh\ncat {names}\n")
    script.chmod(0o755)
    names.write_text("host1:1\n")
    flags = ["-np", "1", "--max-workers", "2", "--max-restarts", "1", "--host-discovery-script", str(script)]
    job = hosts.spawn("host1", [*LAUNCH, *flags, *TRAIN], cwd=tmp_path)
    await_further_lines(job, tmp_path)
    names.write_text("host1:1\nhost2:1\n")
    await_words(job, "host2 is not used now: all others run on this machine", "--nic names a network for them")
    await_further_lines(job, tmp_path)
    stop(job, hosts, tmp_path, resumed=0)


def test_a_host_that_comes_back_gets_a_worker_once_one_can_be_started(hosts: EmulatedHosts, tmp_path: Path) -> None:
    """At first its folder is missing there, which would be wrong usage at the start."""
    folder, empty = tmp_path / "shared" / "work", tmp_path / "empty"
    folder.mkdir(parents=True)
    empty.mkdir()
    flags = ["-H", "host1:1,host2:1", "--max-restarts", "2", "--min-workers", "1", "--grace", "20"]
    flags += ["--link-timeout", str(LINK_S), "--working-dir", str(folder)]
    try:
        job = hosts.spawn("host1", [*LAUNCH, *flags, *TRAIN], cwd=folder)
        await_further_lines(job, folder)
        first, cut_off = (one(hosts, host, "-m hvdtrain train") for host in ("host1", "host2"))
        hosts.drop_packets("host2")
        await_words(job, "hvdtrain launch: 1 worker trains on.")
        assert cut_off not in hosts.pids("host2", "-m hvdtrain train"), "two jobs would write into one folder"
        hosts.bind("host2", empty, folder.parent)
        hosts.restore()
        kill(hosts.pids("host2", "sshd: "))
        await_words(job, f"host2: The working directory {folder} is not a folder", "The next one is started in 1 s.")
        await_further_lines(job, folder)
        hosts.unbind("host2", folder.parent)
        await_words(job, "hvdtrain launch: 2 workers train on, of which 1 joined.")
        await_further_lines(job, folder)
        assert one(hosts, "host1", "-m hvdtrain train") == first, "rank 0 keeps its process"
        stop(job, hosts, folder, resumed=2)
    finally:
        end_cut(hosts)


def test_the_host_of_a_worker_that_computes_wrongly_is_left_out(three: EmulatedHosts, tmp_path: Path) -> None:
    """Of the worlds of one start, and of those after it, until too few others are left."""
    workers = Path(__file__).parents[1] / "parallel" / "workers"
    flags = [
        "-H",
        "host1:1,host2:2,host3:1",
        "--min-workers",
        "2",
        "--max-restarts",
        "9",
        "--link-timeout",
        str(LINK_S),
    ]
    flags += ["--pass-env", "WRONG", "--pass-env", "PYTHONPATH"]
    train = ["--task", "wrong_torch:Wrong", "--virtual-workers", "4", "--check-workers", "every=5"]
    variables = {"WRONG": "1", "PYTHONPATH": f"{workers}:{Path(__file__).parents[2]}"}
    job = three.spawn("host1", [*LAUNCH, *flags, *TRAIN, *train], variables, tmp_path)
    left_out = "host2 is left out from now on, if enough other places are left."
    try:
        await_words(job, "rank 1 on ", left_out, "hvdtrain launch: 2 workers train on.")
        await_further_lines(job, tmp_path)
        assert not three.pids("host2", "-m hvdtrain train")
        assert "joined" not in job.output
        kill([one(three, host, "-m hvdtrain train") for host in ("host1", "host3")])
        wrong = "host2 is left out: a worker there has computed wrongly."
        await_words(job, f"hvdtrain launch: go on with 2 workers, of 4 asked for; {wrong}")
        await_further_lines(job, tmp_path)
        assert not three.pids("host2", "-m hvdtrain train")
        three.drop_packets("host3")
        await_words(job, "1 slot is left, 2 workers are needed. host3: ", wrong)
        hint = "HINT: start the job again with --resume auto and other hosts in place of host2, or without it and with "
        await_words(job, f"{hint}-np 1 --min-workers 1.")
        kill([one(three, "host1", "-m hvdtrain launch")], signal.SIGTERM)
        done = job.wait(DEADLINE_S)
        assert done.returncode == 128 + signal.SIGTERM, done.tail()
        require_exactly_once(three, tmp_path, resumed=2)
    finally:
        three.restore()
        kill(three.pids("host3", "sshd: "))
