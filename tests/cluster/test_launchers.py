"""One training, two hosts, every launcher: each recognizes two nodes, and the weights are the same to the bit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from emulated_hosts import EmulatedHosts
from emulated_slurm import EmulatedSlurm
from training import ACROSS, ENVIRONMENT, START_SECONDS, Run, read_run

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = ("--max-steps", "3")
IN_A_BATCH_JOB = {
    "horovodrun": "hvdtrain launch horovodrun -- train",
    "mpirun": "hvdtrain launch mpirun --allow-root -- train",
}
LAUNCHED_BY = {"horovodrun": "horovodrun", "mpirun": "mpirun", "srun": "slurm"}


@pytest.fixture(scope="module")
def weights(emulated_hosts: EmulatedHosts, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the same training by two processes on one host."""
    folder = tmp_path_factory.mktemp("local") / "run"
    argv = ["hvdtrain", "launch", "local", "-np", "2", "--", "train", *SHORT, "--output-dir", str(folder)]
    done = emulated_hosts.run("host1", argv, START_SECONDS, ENVIRONMENT)
    assert done.returncode == 0, done.tail()
    return read_run(folder).weights


def require_same(run: Run, launcher: str, weights: str) -> None:
    """Of three steps on two hosts."""
    assert (run.launcher, run.size, run.num_nodes) == (LAUNCHED_BY[launcher], 2, 2)
    assert run.weights == weights


def test_training_across_hosts_reaches_the_known_accuracy(slurm: EmulatedSlurm, tmp_path: Path) -> None:
    """By the one launcher that is not compared to the bit below."""
    argv = [*ACROSS["horovodrun"], "--output-dir", str(tmp_path / "run")]
    done = slurm.run(argv, 2 * START_SECONDS, ENVIRONMENT)
    assert done.returncode == 0, done.tail()
    run = read_run(tmp_path / "run")
    assert (run.status, run.size, run.num_nodes) == ("finished", 2, 2)
    assert run.accuracy >= 0.97


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_launchers_across_hosts_give_the_same_weights(
    slurm: EmulatedSlurm, tmp_path: Path, weights: str, launcher: str
) -> None:
    done = slurm.run([*ACROSS[launcher], *SHORT, "--output-dir", str(tmp_path / "run")], START_SECONDS, ENVIRONMENT)
    assert done.returncode == 0, done.tail()
    require_same(read_run(tmp_path / "run"), launcher, weights)


def test_workers_meet_on_hosts_whose_own_names_mean_loopback(
    hosts: EmulatedHosts, tmp_path: Path, weights: str
) -> None:
    """Debian's installer writes them beside 127.0.1.1. Started by hand, without launcher, ssh and MPI."""
    master = {"WORLD_SIZE": "2", "MASTER_ADDR": hosts.address("host1"), "MASTER_PORT": "29400"}
    argv = ["python", "-m", "hvdtrain", "train", *SHORT, "--output-dir", str(tmp_path / "run")]
    started = []
    for rank, host in enumerate(("host1", "host2")):
        names = tmp_path / f"names of {host}"
        names.write_text(f"127.0.0.1 localhost\n127.0.1.1 {host}\n")
        hosts.bind(host, names, Path("/etc/hosts"))
        place = {"RANK": str(rank), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        started.append(hosts.spawn(host, argv, {**ENVIRONMENT, **master, **place}))
    try:
        ended = [worker.wait(START_SECONDS) for worker in started]
    finally:
        for host in hosts.names:
            hosts.unbind(host, Path("/etc/hosts"))
    assert [done.returncode for done in ended] == [0, 0], ended[0].tail()
    run = read_run(tmp_path / "run")
    assert (run.size, run.num_nodes, run.weights) == (2, 2, weights)


@pytest.mark.parametrize("start", ["srun", "mpirun"])
def test_launch_slurm_submits_a_job_that_trains_on_both_nodes(
    slurm: EmulatedSlurm, tmp_path: Path, weights: str, start: str
) -> None:
    flags = ["-np", "2", "--slots-per-host", "1", "--start", start, *(["--allow-root"] if start == "mpirun" else [])]
    run = tmp_path / "run"
    argv = ["hvdtrain", "launch", "slurm", *flags, "--", "train", *SHORT, "--output-dir", str(run)]
    job = slurm.submit(argv, tmp_path, ENVIRONMENT)
    facts = slurm.wait_for_end(job, START_SECONDS)
    log = tmp_path / f"hvdtrain-{job}.log"
    assert (facts["JobState"], facts["ExitCode"]) == ("COMPLETED", "0:0"), log.read_text()
    require_same(read_run(run), start, weights)


@pytest.mark.parametrize("launcher", IN_A_BATCH_JOB)
def test_launchers_take_their_hosts_from_the_batch_job_around_them(
    slurm: EmulatedSlurm, tmp_path: Path, weights: str, launcher: str
) -> None:
    script, log = tmp_path / "job.sh", tmp_path / "job.log"
    run = tmp_path / "run"
    script.write_text(f"#!/bin/bash\n{IN_A_BATCH_JOB[launcher]} {' '.join(SHORT)} --output-dir {run}\n")
    job = slurm.submit(["sbatch", "--nodes=2", "--ntasks=2", f"--output={log}", script.name], tmp_path, ENVIRONMENT)
    facts = slurm.wait_for_end(job, START_SECONDS)
    assert facts["JobState"] == "COMPLETED", log.read_text()
    assert "hosts from SLURM_JOB_NODELIST=host[1-2]" in log.read_text()
    require_same(read_run(run), launcher, weights)


@pytest.mark.parametrize("script", ["horovod_loop.py", "ddp_loop.py"])
def test_a_loop_of_ones_own_trains_in_a_slurm_step_as_in_one_process(
    slurm: EmulatedSlurm, tmp_path: Path, script: str
) -> None:
    python = ["python", str(EXAMPLES / script)]
    losses = []
    for workers, argv in ((1, python), (2, ["srun", "--nodes=2", "--ntasks=2", *python])):
        folder = tmp_path / str(workers)
        folder.mkdir()
        done = slurm.run(argv, START_SECONDS, ENVIRONMENT, folder)
        assert done.returncode == 0, done.tail()
        (loss,) = re.findall(rf"loss (\S+) on {workers} workers", done.stdout)
        losses.append(float(loss))
    assert losses[1] == pytest.approx(losses[0], abs=2e-4)
