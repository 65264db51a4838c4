"""What Slurm does to jobs (cancel, preempt, time limit) finds them saving and leaving, or going on where they were."""

from __future__ import annotations

import re
from pathlib import Path

from emulated_slurm import EmulatedSlurm
from support.processes import wait_until
from training import ENVIRONMENT, START_SECONDS, has_trained, read_run

LEAVE_SECONDS = 60
# Of a task that computes little, so that jobs which wait for Slurm take nothing from other tests.
PATIENT = """\
import time
from hvdtrain.tasks.torch import TorchDigits

class Patient(TorchDigits):
    def decode(self, records):
        time.sleep(0.05)
        return super().decode(records)
"""
STOPPED = re.compile(r"stopped by SIGTERM \(all ranks\) after step (\d+), which a checkpoint holds")


def submit_long_training(slurm: EmulatedSlurm, folder: Path, *flags: str) -> str:
    """By `hvdtrain launch slurm`, into `folder`/run; it would go on for minutes. Returns the job's number."""
    own = ["-np", "2", "--slots-per-host", "1", *flags]
    (folder / "patient.py").write_text(PATIENT)
    task = ["--task", "patient:Patient", "--task-args.width", "2"]
    train = ["train", *task, "--epochs", "2000", "--output-dir", str(folder / "run")]
    return slurm.submit(["hvdtrain", "launch", "slurm", *own, "--", *train], folder, ENVIRONMENT)


def wait_for_training(folder: Path, job: str) -> None:
    """Until the first epoch is done."""
    wait_until("an epoch is done", lambda: has_trained(folder / "run"), START_SECONDS, lambda: log_of(folder, job))


def log_of(folder: Path, job: str) -> str:
    """Everything that the job has said."""
    path = folder / f"hvdtrain-{job}.log"
    return path.read_text() if path.exists() else ""


def test_workers_that_are_asked_to_stop_save_and_end_with_75(slurm: EmulatedSlurm, tmp_path: Path) -> None:
    job = submit_long_training(slurm, tmp_path)
    wait_for_training(tmp_path, job)
    slurm.run(["scancel", "--signal=TERM", job])
    facts = slurm.wait_for_end(job, LEAVE_SECONDS)
    assert facts["ExitCode"] == "75:0", log_of(tmp_path, job)
    assert STOPPED.search(log_of(tmp_path, job))
    assert read_run(tmp_path / "run").status == "stopped"


def test_a_job_that_is_cancelled_saves_first(slurm: EmulatedSlurm, tmp_path: Path) -> None:
    job = submit_long_training(slurm, tmp_path)
    wait_for_training(tmp_path, job)
    slurm.run(["scancel", job])
    assert slurm.wait_for_end(job, LEAVE_SECONDS)["JobState"] == "CANCELLED"
    wait_until("it has saved", lambda: bool(STOPPED.search(log_of(tmp_path, job))), LEAVE_SECONDS)
    assert read_run(tmp_path / "run").status == "stopped"


def test_a_preempted_job_makes_room_and_goes_on_where_it_was(slurm: EmulatedSlurm, tmp_path: Path) -> None:
    job = submit_long_training(slurm, tmp_path, "--max-restarts", "1", "--partition", "low")
    wait_for_training(tmp_path, job)
    urgent = ["sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true"]
    slurm.wait_for_end(slurm.submit(urgent, tmp_path), LEAVE_SECONDS)
    stopped = STOPPED.search(log_of(tmp_path, job))
    assert stopped is not None, log_of(tmp_path, job)
    goes_on = f"training from step {stopped[1]} to"
    wait_until(goes_on, lambda: goes_on in log_of(tmp_path, job), START_SECONDS, lambda: log_of(tmp_path, job))
    assert slurm.facts(job)["Restarts"] == "1"


def test_the_notice_before_the_time_limit_brings_the_job_back(slurm: EmulatedSlurm, tmp_path: Path) -> None:
    """Slurm gives it 60 to 90 seconds before the limit. With a limit of one minute that could be before there is a step
    that it is given to."""
    job = submit_long_training(slurm, tmp_path, "--max-restarts", "9", "--time-limit", "2:00")
    wait_until(
        "it is started again",
        lambda: slurm.facts(job)["Restarts"] != "0",
        START_SECONDS + 60,
        lambda: str(slurm.facts(job)),
    )
    assert slurm.facts(job)["JobState"] not in ("TIMEOUT", "FAILED")
