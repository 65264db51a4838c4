"""What fails while a job runs on two hosts ends it in time, says where, and leaves nothing running on any host."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from emulated_hosts import EmulatedHosts
from emulated_slurm import EmulatedSlurm
from support.process_table import kill
from support.processes import Spawned, wait_until
from training import ACROSS, ENVIRONMENT, START_SECONDS, has_trained, read_run

END_SECONDS = 60
# Open MPI's own rank on host1 may see the closed connection before mpirun hears of it, and aborts the job first.
NAMES_THE_RANK = {
    "horovodrun": "Process 1 exit with status code",
    "mpirun": "host2|Socket closed",
    "srun": "task 1: Killed",
}


def start_long_training(slurm: EmulatedSlurm, launcher: str, run: Path) -> Spawned:
    """A training that would go on for minutes; returns when it has done an epoch."""
    spawned = slurm.spawn([*ACROSS[launcher], "--epochs", "2000", "--output-dir", str(run)], env=ENVIRONMENT)
    wait_until(
        "the first epoch is done",
        lambda: has_trained(run) or not spawned.running,
        START_SECONDS,
        lambda: spawned.output,
    )
    assert spawned.running, spawned.output
    return spawned


@pytest.mark.parametrize("launcher", ACROSS)
def test_a_killed_worker_ends_the_job_on_all_hosts(slurm: EmulatedSlurm, tmp_path: Path, launcher: str) -> None:
    job = start_long_training(slurm, launcher, tmp_path / "run")
    (worker,) = slurm.hosts.pids("host2", " -m hvdtrain train")
    kill([worker])
    done = job.wait(END_SECONDS)
    assert done.returncode != 0
    assert re.search(NAMES_THE_RANK[launcher], done.output), done.tail()
    slurm.hosts.wait_until_quiet()


@pytest.mark.parametrize("launcher", ACROSS)
def test_a_killed_launcher_leaves_no_worker_on_any_host(slurm: EmulatedSlurm, tmp_path: Path, launcher: str) -> None:
    job = start_long_training(slurm, launcher, tmp_path / "run")
    job.kill()
    assert job.wait(END_SECONDS).returncode == -9
    slurm.hosts.wait_until_quiet(END_SECONDS)


@pytest.mark.parametrize("launcher", ACROSS)
def test_a_worker_that_never_starts_is_not_waited_for_longer_than_asked(
    slurm: EmulatedSlurm, tmp_path: Path, launcher: str
) -> None:
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$(hostname)" = host2 ] && [ "$1" = -m ] && exec sleep 600\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    argv = list(ACROSS[launcher])
    if launcher == "srun":
        argv[argv.index("python")] = str(python)
        argv.insert(1, "--wait=5")  # srun itself waits for ever for the task that hangs; `launch slurm` sets this
    else:
        own = ["--python", str(python), *(["--start-timeout", "5"] if launcher == "horovodrun" else [])]
        argv[3:3] = own
    done = slurm.run([*argv, "--max-steps", "3"], START_SECONDS, {**ENVIRONMENT, "HVDTRAIN_START_TIMEOUT": "5"})
    assert done.returncode != 0
    said = "Rank 1 did not come in time" if launcher == "srun" else "Not all of the 2 ranks were connected within 5 s"
    assert said in done.output, done.tail()
    assert "HVDTRAIN_START_TIMEOUT" in done.output.partition("HINT: ")[2]
    if launcher == "horovodrun":  # it ends its ssh, and what ran on the other side of that stays
        slurm.hosts.sweep()


def test_ranks_meet_on_another_port_where_theirs_is_taken(hosts: EmulatedHosts, tmp_path: Path) -> None:
    taken = hosts.spawn("host1", ["python", "-m", "http.server", "29411", "--bind", hosts.address("host1")])
    wait_until("the port is taken", lambda: _listens(hosts, 29411), END_SECONDS, lambda: taken.output)
    place = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "host1",
        "MASTER_PORT": "29411",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
    argv = ["python", "-m", "hvdtrain", "train", "--max-steps", "3", "--output-dir", str(tmp_path / "run")]
    ranks = [
        hosts.spawn(host, argv, {**ENVIRONMENT, **place, "RANK": str(rank)}) for rank, host in enumerate(hosts.names)
    ]
    for rank in ranks:
        done = rank.wait(START_SECONDS)
        assert done.returncode == 0, done.tail()
    assert read_run(tmp_path / "run").num_nodes == 2
    taken.kill()


def _listens(hosts: EmulatedHosts, port: int) -> bool:
    script = f"import socket; socket.create_connection(({hosts.address('host1')!r}, {port}), 2)"
    return hosts.run("host2", ["python", "-c", script], END_SECONDS).returncode == 0
