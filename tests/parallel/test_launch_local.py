"""`hvdtrain launch local`: real training; see test_launch_local_ends.py for all the ways in which jobs end."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.jobs import Job
from support.processes import run_command
from support.runs import result_of, topology_of_run
from support.warm.interpreters import Interpreter

DEADLINE_S = 180.0

Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `hvdtrain launch local -np 2 FLAGS -- train COMMAND --output-dir out`."""
    with ExitStack() as jobs:

        def start_job(*command: str, flags: tuple[str, ...] = (), np: int = 2, **fault: Any) -> Job:
            env = {}
            task: list[str] = []
            interpreter: Interpreter = (
                "fresh" if fault.get("place") == "import" or fault.get("kind") == "leave" else "warm workers"
            )
            if fault:
                env["TRAIN_FAULT"] = json.dumps({"rank": 1, "call": 1, "stamp": str(tmp_path / "stamp"), **fault})
                task = ["--task", "train_torch_tasks:Faulty"]
            progress = [] if "--progress" in command else ["--progress", "auto"]
            options = [*task, *command, *progress]
            return jobs.enter_context(Job(tmp_path, ["-np", str(np), *flags], options, env, interpreter))

        yield start_job


def test_the_default_task_survives_a_killed_worker(start: Start) -> None:
    """Every record of every epoch is used once, and the task is learned."""
    job = start("--epochs", "5", "--checkpoint-interval", "10", flags=("--max-restarts", "1"))
    job.await_lines()
    (token,) = {v["HOROVOD_GLOO_RENDEZVOUS_ADDR"].partition("/")[2] for v in job.variables()}
    os.kill(job.workers()[1], signal.SIGKILL)
    assert job.ended() == 0, job.said.tail()
    assert "hvdtrain launch: rank 1 of 2 was killed by SIGKILL." in job.said.stderr, job.said.tail()
    assert "hvdtrain launch: restart 1 of 1 in 1 s." in job.said.stderr, job.said.tail()
    assert ", 2 workers by hvdtrain launch on 1 node" in job.said.stdout.splitlines()[0], job.said.tail()
    assert job.said.stderr.count("epoch 5/5") == 1, job.said.tail()
    assert any(event["step"] > 0 for event in job.events("resumed"))
    verified = run_command(["python", "-m", "hvdtrain", "shard", "verify", "out"], DEADLINE_S, cwd=job.folder)
    assert verified.returncode == 0, verified.tail()
    result = result_of(job.out)
    assert (result["world_size"], result["epochs"], result["metrics"]["accuracy"] >= 0.95) == (2, 5, True)
    (restart,) = result["goodput"]["restarts"]
    assert restart["cause"] == "rank 1 of 2 was killed by SIGKILL."
    assert restart["lost_steps"] >= 0
    assert 0 < result["goodput"]["share"] < 1
    assert token not in job.said.stdout + job.said.stderr + (job.out / "env.json").read_text()


def test_tensorflow(start: Start) -> None:
    job = start("--framework", "tensorflow", "--max-steps", "3", "--warmup-epochs", "0")
    assert job.ended() in (0, 75), job.said.tail()
    result = result_of(job.out)
    assert (result["framework"], result["world_size"], result["steps"]) == ("tensorflow", 2, 3)


def test_one_worker_and_three_whose_bar_passes_unchanged(start: Start) -> None:
    job = start("--max-steps", "2", np=1)
    assert job.ended() in (0, 75), job.said.tail()
    job = start("--epochs", "1", "--progress", "bar", "--resume", "auto", np=3)
    assert job.ended() == 0, job.said.tail()
    assert topology_of_run(job.out)["size"] == 3
    assert "[1]" not in job.said.stdout + job.said.stderr, job.said.tail()
    assert job.said.stderr.count("\r") >= 2, job.said.tail()  # more on a slower machine
    assert "30/30" in job.said.stderr.replace("\r", "\n"), job.said.tail()


def test_an_exception_on_one_rank_comes_first_and_last(start: Start) -> None:
    job = start(place="measure", kind="raise", call=4)
    assert job.ended() == 1, job.said.tail()
    heading = job.said.stderr.index("hvdtrain launch: rank 1 of 2 failed with exit code 1. Its last lines:")
    text = "RuntimeError: deliberate failure in measure"
    assert re.search(rf"^\[1\] rank 1 on \S+ failed: {text} \(", job.said.stderr[:heading], re.MULTILINE), (
        job.said.tail()
    )
    assert job.said.stderr.endswith(f"\n  [1] {text}\n"), job.said.tail()
    assert job.said.stderr.count("Traceback (most recent call last)") == 1, job.said.tail()
    other = job.said.stderr.find("stopped: A collective")
    assert other < 0 or job.said.stderr.index(text) < other, job.said.tail()


def test_an_exception_on_all_ranks_is_told_once(start: Start) -> None:
    job = start(place="measure", kind="raise", call=4, rank="all")
    assert job.ended() == 1, job.said.tail()
    assert re.search(r"^rank 0 on \S+ failed.*:\nTraceback", job.said.stderr, re.MULTILINE), job.said.tail()
    assert job.said.stderr.count("Traceback (most recent call last)") == 1, job.said.tail()
    assert "hvdtrain launch: rank 0 of 2 failed with exit code 1. Its last lines:" in job.said.stderr, job.said.tail()


def test_ranks_that_leave_with_exit_code_0_before_the_end_have_failed(start: Start) -> None:
    job = start(place="measure", kind="leave", call=4, rank="all")
    assert job.ended() == 1, job.said.tail()
    said = r"hvdtrain launch: rank [01] of 2 ended without an error before it was done, as os\._exit\(0\) does\."
    assert re.search(said, job.said.stderr), job.said.tail()


def test_a_rank_that_hangs_is_blamed_and_not_those_that_waited(start: Start) -> None:
    job = start("--stall-timeout", "5", place="measure", kind="hang", call=4)
    assert job.ended() == 1, job.said.tail()
    report = job.said.stderr[job.said.stderr.rindex("hvdtrain launch: ") :]
    assert report.startswith("hvdtrain launch: rank 1 of 2 took no part in a collective operation"), job.said.tail()


@pytest.mark.parametrize("flag", ["--epochz", "--data.threadz"])
def test_bad_usage_is_said_once_and_not_tried_again(flag: str, start: Start) -> None:
    job = start(flag, "3", flags=("--max-restarts", "3"))
    assert job.ended() == 2, job.said.tail()
    assert job.said.stderr.count(f"There is no option {flag}.") == 1, job.said.tail()
    assert job.said.stderr.count("HINT: ") == 1, job.said.tail()
    assert "hvdtrain launch" not in job.said.stderr, job.said.tail()
    assert job.said.stderr.index("There is no option") < job.said.stderr.index("HINT: ")


def test_bad_usage_of_one_rank_only(start: Start) -> None:
    job = start(place="import", kind="refuse")
    assert job.ended() == 2, job.said.tail()
    assert job.said.stderr.count("There is a deliberate refusal in import.") == 1, job.said.tail()
    assert job.said.stderr.startswith("[1] rank 1 on "), job.said.tail()


def test_a_worker_that_never_comes_is_named(start: Start) -> None:
    job = start(place="import", kind="hang", flags=("--start-timeout", "10"))
    assert job.ended(10 + DEADLINE_S / 3) == 1, job.said.tail()
    assert re.search(r"rank 1 \(process \d+\) did not join the other ranks within 10 seconds", job.said.stderr), (
        job.said.tail()
    )
    assert "HINT: " in job.said.stderr


def test_a_restart_keeps_to_what_the_user_asked_for_until_its_job_has_begun(start: Start) -> None:
    """A worker is lost before. What is in the folder is then of another branch, or of a run that was refused."""
    task = ("--task", "train_torch_tasks:Faulty")
    first = start(*task, "--max-steps", "4", "--checkpoint-interval", "2", "--keep-checkpoints", "9")
    assert first.ended() in (0, 75), first.said.tail()
    lost = {"place": "build_model", "kind": "kill", "once": True}
    back = ["--resume", str(first.out / "checkpoints" / "step_00000002"), "--max-steps", "5"]
    job = start(*back, flags=("--max-restarts", "1", "--backoff", "0"), **lost)
    assert job.ended() in (0, 75), job.said.tail()
    assert "restart 1 of 1" in job.said.stderr, job.said.tail()
    assert "training from step 2 to " in job.said.stderr, job.said.tail()
    (job.folder / "stamp").unlink()
    job = start("--resume", "never", flags=("--max-restarts", "1", "--backoff", "0"), **lost)
    assert job.ended() == 2, job.said.tail()
    assert "already holds a run" in job.said.stderr, job.said.tail()


def test_no_workers_is_bad_usage(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "hvdtrain", "launch", "local", "-np", "0", "--", "train"]
    finished = run_command(argv, 60, cwd=tmp_path)
    assert finished.returncode == 2, finished.tail()
    assert finished.stderr.count("HINT: ") == 1, finished.tail()
